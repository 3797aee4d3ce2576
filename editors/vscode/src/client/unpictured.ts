/** Markdown that comes in pieces, with its pictures made text: to fetch one would tell somebody what was asked. */

export class Unpictured {
  #before = "";

  /** The next piece, safe after those before it. */
  next(piece: string): string {
    const safe = (this.#before + piece).replace(/!\[/g, "!\\[").slice(this.#before.length);
    this.#before = piece.endsWith("!") || (piece === "" && this.#before) ? "!" : "";
    return safe;
  }
}
