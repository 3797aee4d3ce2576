// Bundles the extension, its panel's script and the tests into dist/.
import { readFile, readdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { build } from "esbuild";

const production = process.argv.includes("--production");
const common = { bundle: true, minify: production, sourcemap: production ? false : "inline", metafile: true };

/** The folder and name of the package that a bundled file is of; null for our own. */
function packageOf(file) {
  const found = /^(.*node_modules\/((?:@[^/]+\/)?[^/]+))\//.exec(file);
  return found && { folder: found[1], name: found[2] };
}

/** The licences of what is in the bundles, which go where the bundles go. */
async function notices(inputs) {
  const folders = new Map(inputs.map(packageOf).filter(Boolean).map(({ folder, name }) => [name, folder]));
  const texts = [];
  for (const [name, folder] of [...folders].sort()) {
    const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    const file = (await readdir(folder)).find((entry) => /^licen[cs]e/i.test(entry));
    const text = file ? (await readFile(join(folder, file), "utf8")).trim() : license;
    texts.push(`${name} ${version}\n\n${text}\n`);
  }
  return texts.join(`\n${"-".repeat(80)}\n\n`);
}

process.chdir(import.meta.dirname);
await rm("dist", { recursive: true, force: true });
const extension = await build({
  ...common,
  entryPoints: ["src/extension.ts"],
  outfile: "dist/extension.js",
  platform: "node",
  target: "node20",
  external: ["vscode"],
});
const panel = await build({
  ...common,
  entryPoints: ["src/webview/panel.ts"],
  outfile: "dist/panel.js",
  platform: "browser",
  format: "iife",
  target: "es2022",
});
if (!production) {
  const tests = (await readdir("test")).filter((name) => name.endsWith(".test.ts"));
  await build({
    ...common,
    entryPoints: tests.map((name) => join("test", name)),
    outdir: "dist/test",
    platform: "node",
    target: "node20",
  });
}
const inputs = [extension, panel].flatMap(({ metafile }) => Object.keys(metafile.inputs));
await writeFile("dist/NOTICES.txt", await notices(inputs));
