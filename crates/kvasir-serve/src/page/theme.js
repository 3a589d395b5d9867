// Light or dark: as the system has it, or as chosen.

import { local } from "/page/storage.js";

const KEY = "kvasir-theme";

export class Theme {
  /** `changed()` draws again what has its colors from the theme. */
  constructor(changed) {
    this.changed = changed;
    const chosen = local.get(KEY);
    if (chosen) document.documentElement.dataset.theme = chosen;
  }

  /** `light`, `dark` or `system`. */
  get chosen() {
    return document.documentElement.dataset.theme ?? "system";
  }

  choose(name) {
    const { dataset } = document.documentElement;
    if (name === "system") delete dataset.theme;
    else dataset.theme = name;
    if (name === "system") local.remove(KEY);
    else local.set(KEY, name);
    this.changed();
  }

  toggle() {
    const dark = this.chosen === "system" ? matchMedia("(prefers-color-scheme: dark)").matches : this.chosen === "dark";
    this.choose(dark ? "light" : "dark");
  }
}
