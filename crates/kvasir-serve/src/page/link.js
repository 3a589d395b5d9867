// Failure detector: whether the server can be reached.
//
// Every byte from the server is a heartbeat. After QUIET ms without a byte the page probes `GET /live`, so an idle page
// that is visible sends a short request per second. The server is unreachable when a probe fails.
//
// A killed process closes its connections: a read fails, and a probe follows at once. A machine
// without power closes nothing: detection then takes QUIET + TICK + PATIENCE, under three seconds.

const QUIET = 1100; // ms without a byte before a probe
const PATIENCE = 1200; // ms that a probe may take
const PAUSE = 1000; // ms between probes while unreachable
const TICK = 200; // ms between checks of the clock

class Link extends EventTarget {
  constructor() {
    super();
    Object.assign(this, { up: true, probing: false, heardAt: performance.now(), probedAt: 0 });
    setInterval(() => this.look(), TICK);
    for (const event of ["online", "offline"]) window.addEventListener(event, () => this.probe());
  }

  /** Takes in a heartbeat. */
  heard() {
    this.heardAt = performance.now();
    this.set(true);
  }

  look() {
    // A hidden page sends no probes.
    if (document.hidden && this.up) return;
    const now = performance.now();
    if (now - this.heardAt > QUIET && (this.up || now - this.probedAt > PAUSE)) this.probe();
  }

  /** Asks the server for a sign of life now. */
  async probe() {
    if (this.probing) return;
    this.probing = true;
    this.probedAt = performance.now();
    try {
      const { status } = await fetch("/live", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
      // A proxy answers so for a server that it cannot reach.
      if (status === 502 || status === 504) this.set(false);
      else this.heard();
    } catch {
      this.set(false);
    }
    this.probing = false;
  }

  set(up) {
    if (this.up === up) return;
    this.up = up;
    this.dispatchEvent(new Event("change"));
  }

  /** Waits until the server can be reached, and at least `ms` if it can be now. */
  async pause(ms) {
    if (this.up) await new Promise((done) => setTimeout(done, ms));
    while (!this.up) await new Promise((done) => this.addEventListener("change", done, { once: true }));
  }
}

export const link = new Link();
