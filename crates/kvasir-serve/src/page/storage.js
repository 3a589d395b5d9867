// The browser's `localStorage` and `sessionStorage`. If the browser blocks them, or one is full, values last as long as
// the page.

class Area {
  constructor(name) {
    this.name = name;
    /** Values that the browser did not take, by key. */
    this.memory = new Map();
  }

  get(key) {
    if (this.memory.has(key)) return this.memory.get(key);
    try {
      return globalThis[this.name].getItem(key);
    } catch {
      return null;
    }
  }

  /** False if the value lasts only as long as the page. */
  set(key, value) {
    try {
      globalThis[this.name].setItem(key, value);
      this.memory.delete(key);
      return true;
    } catch {
      this.memory.set(key, value);
      return false;
    }
  }

  remove(key) {
    this.memory.delete(key);
    try {
      globalThis[this.name].removeItem(key);
    } catch {
      // There is nothing to remove.
    }
  }
}

/** Kept by the browser. */
export const local = new Area("localStorage");
/** Kept until the tab closes. */
export const session = new Area("sessionStorage");
