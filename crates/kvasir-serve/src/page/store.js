// Conversations in the browser's IndexedDB. If the browser has none, for example in a private window,
// they last as long as the page.

const NAME = "kvasir", VERSION = 1, STORE = "conversations";
const TRIES = 5, PAUSE = 200; // ms between attempts to open a database that the browser is just deleting

/** Waits for a request of IndexedDB. */
const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

/** Waits until a transaction is complete: a full quota aborts it after its requests have succeeded. */
const committed = (transaction) => new Promise((resolve, reject) => {
  transaction.oncomplete = () => resolve();
  transaction.onabort = () => reject(transaction.error ?? new DOMException("the transaction was aborted", "AbortError"));
});

async function openDatabase(tries = TRIES) {
  const request = indexedDB.open(NAME, VERSION);
  request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
  try {
    return await done(request);
  } catch (error) {
    if (error?.name !== "AbortError" || tries === 1) throw error;
  }
  await new Promise((resume) => setTimeout(resume, PAUSE));
  return openDatabase(tries - 1);
}

/** Records by id: `{id, title, named, renamed, created, updated, system, prompted, overflow, overflowed, tree}`. Fires `cleared`. */
export class Store extends EventTarget {
  constructor() {
    super();
    this.memory = new Map();
    this.database = null;
    /** The connection that is being opened again. */
    this.opening = null;
  }

  static async open() {
    const store = new Store();
    await store.connect();
    return store;
  }

  async connect() {
    try {
      const database = (this.database = await openDatabase());
      // The browser closes it when the site's data is cleared.
      database.onclose = () => {
        if (this.database !== database) return;
        this.reopen();
      };
    } catch {
      this.database = null;
    }
  }

  /** Connects again; what is read or written meanwhile waits for it. */
  reopen() {
    this.database.onclose = null;
    this.database = null;
    this.opening = this.connect().then(() => this.dispatchEvent(new Event("cleared")));
    return this.opening;
  }

  /** Runs `act(records, transaction)` on the database, or `orElse(memory)` without one. */
  async run(mode, act, orElse, again = true) {
    await this.opening;
    if (!this.database) return orElse(this.memory);
    let transaction;
    try {
      transaction = this.database.transaction(STORE, mode);
    } catch (error) {
      if (!again) throw error;
      // The browser has closed it, and the event is yet to follow.
      await this.reopen();
      return this.run(mode, act, orElse, false);
    }
    return act(transaction.objectStore(STORE), transaction);
  }

  async all() {
    return this.run("readonly", (records) => done(records.getAll()), (memory) => [...memory.values()]);
  }

  async get(id) {
    return this.run("readonly", (records) => done(records.get(id)), (memory) => structuredClone(memory.get(id)));
  }

  async put(record) {
    await this.update(record.id, () => record);
  }

  /**
   * Replaces a record by `change(stored)`, or leaves it if that is null. Other tabs write nothing in between.
   * Throws an error if the record is not kept.
   */
  async update(id, change) {
    const inDatabase = (records, transaction) => {
      records.get(id).onsuccess = ({ target }) => {
        const record = change(target.result);
        if (record) records.put(record);
      };
      return committed(transaction);
    };
    await this.run("readwrite", inDatabase, (memory) => {
      const record = change(structuredClone(memory.get(id)));
      if (record) memory.set(id, structuredClone(record));
    });
  }

  async remove(id) {
    const inDatabase = (records, transaction) => {
      records.delete(id);
      return committed(transaction);
    };
    await this.run("readwrite", inDatabase, (memory) => memory.delete(id));
  }
}
