import { execFileSync, spawn } from "node:child_process";
import { createInterface } from "node:readline";

const { BINARY, MODEL } = process.env;

/** `kvasir serve` on this port, or on a free one. */
export class Server {
  static async start(options, port = 0) {
    const server = new Server();
    server.process = spawn(BINARY, ["serve", ...(MODEL ? [MODEL] : []), "--port", String(port), ...options], { stdio: ["ignore", "ignore", "pipe"] });
    const said = [];
    for await (const line of createInterface({ input: server.process.stderr })) {
      said.push(line);
      server.address = /https?:\/\/[^\s,]+/.exec(line)?.[0];
      if (server.address) break;
    }
    if (!server.address) throw new Error(`the server did not start: ${said.join(" ")}`);
    server.process.stderr.resume();
    return server;
  }

  /** Asks it to leave, and waits until it has. */
  stop(signal = "SIGTERM") {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return Promise.resolve();
    return new Promise((done) => {
      this.process.once("exit", done);
      this.process.kill(signal);
    });
  }
}

/** Runs another command of the binary; `kvasir.input` gives it a text. */
export function kvasir(...args) {
  return execFileSync(BINARY, args, { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
}

kvasir.input = (input, ...args) => execFileSync(BINARY, args, { input, encoding: "utf8", stdio: ["pipe", "pipe", "pipe"] });
