import js from "@eslint/js";
import { defineConfig } from "eslint/config";
import { configs } from "typescript-eslint";

export default defineConfig(
  { ignores: ["dist/"] },
  js.configs.recommended,
  {
    files: ["**/*.ts"],
    extends: [configs.strictTypeChecked, configs.stylisticTypeChecked],
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: {
      complexity: ["error", 10],
      "max-lines": ["error", 300],
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
    },
  },
  {
    // What is tested without an editor can't know it.
    files: ["src/client/**"],
    rules: { "no-restricted-imports": ["error", { paths: ["vscode"], patterns: ["*/ui/*", "*/webview/*"] }] },
  },
  {
    // node:test gives promises that nobody waits for.
    files: ["test/**"],
    rules: { "@typescript-eslint/no-floating-promises": "off" },
  },
  { files: ["*.mjs"], languageOptions: { globals: { process: "readonly", console: "readonly" } } },
);
