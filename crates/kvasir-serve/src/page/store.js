// Conversations in the browser's IndexedDB. If the browser has none, for example in a private window,
// they last as long as the page.

const NAME = "kvasir", VERSION = 1, STORE = "conversations";

/** Waits for a request of IndexedDB. */
const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

function openDatabase() {
  const request = indexedDB.open(NAME, VERSION);
  request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
  return done(request);
}

/** Records by id: `{id, title, named, created, updated, system, tree}`. */
export class Store {
  constructor(database) {
    this.database = database;
    this.memory = database ? null : new Map();
  }

  static async open() {
    try {
      return new Store(await openDatabase());
    } catch {
      return new Store(null);
    }
  }

  objects(mode) {
    return this.database.transaction(STORE, mode).objectStore(STORE);
  }

  async all() {
    return this.memory ? [...this.memory.values()] : done(this.objects("readonly").getAll());
  }

  async get(id) {
    return this.memory ? this.memory.get(id) : done(this.objects("readonly").get(id));
  }

  async put(record) {
    if (this.memory) this.memory.set(record.id, record);
    else await done(this.objects("readwrite").put(record));
  }

  async remove(id) {
    if (this.memory) this.memory.delete(id);
    else await done(this.objects("readwrite").delete(id));
  }
}
