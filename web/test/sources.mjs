// Serves the page's files from the working tree in place of the binary's, to develop them without a build (SOURCES=1).

import { readFile } from "node:fs/promises";

const ROOT = new URL("../../crates/", import.meta.url);
const read = (path) => readFile(new URL(path, ROOT), "utf8");

async function view() {
  const order = /const SCRIPTS[^=]*=[^;]*;/.exec(await read("kvasir-view/src/lib.rs"))[0].matchAll(/page\/(\w+\.js)/g);
  const parts = await Promise.all([...order].map(([, name]) => read(`kvasir-view/src/page/${name}`)));
  return `(() => {\n"use strict";\n${parts.join("")}})();\n`;
}

function source(path) {
  if (path === "/") return read("kvasir-serve/src/page/index.html");
  if (path === "/page/view.js") return view();
  if (path === "/page/view.css") return read("kvasir-view/src/page/style.css");
  return read(`kvasir-serve/src${path}`);
}

export async function serveSources(context) {
  await context.route(({ pathname }) => pathname === "/" || /^\/page\/\w+\.(js|css|svg)$/.test(pathname), async (route) => {
    const { pathname } = new URL(route.request().url());
    const response = await route.fetch().catch(() => null);
    if (!response) return route.abort();
    // Only the page has a policy; another server may have files of these names. The binary lacks new files.
    if (!response.headers()["content-security-policy"] && ![401, 404].includes(response.status())) return route.fulfill({ response });
    const type = { js: "text/javascript", css: "text/css", svg: "image/svg+xml" }[pathname.split(".")[1]] ?? "text/html";
    const { "content-length": length, ...headers } = response.headers();
    await route.fulfill({ status: 200, headers: { ...headers, "content-type": `${type}; charset=utf-8` }, body: await source(pathname) });
  });
}
