"use strict";
/* A client in Node, from docs/reference/protocol.md alone: zeromq.js and JSON.
 *
 *   node client.js --connection FILE | --tcp tcp://HOST:PORT --key FILE
 *        [--streams life,metric] [--drop N] [--boots N] [--lines N] [--method METHOD] [--params JSON]
 *
 * Joins without a hole, throws the Nth new batch away and repairs it by `replay`, sends the command METHOD twice
 * with the same bytes, and waits for the event of its end. Prints every line of the streams in order, each once, also
 * over restarts of the daemon: so many boots, a command in each, and so many lines after the last one's end. What it
 * does goes to standard error, one JSON object a line. Exit code 0 if all went well.
 */
const fs = require("node:fs");
const { randomUUID } = require("node:crypto");
const { parseArgs } = require("node:util");
const zmq = require("zeromq");

const SILENCE_MS = 5000; // without a heartbeat: look for the daemon again
const RESEND_MS = 2000;
const PATIENCE_MS = 60000;

const text = (name, value) => ({ [name]: { type: "string", default: value } });
const { values: options } = parseArgs({
  options: Object.assign(
    { connection: { type: "string" }, tcp: { type: "string" }, key: { type: "string" } },
    text("streams", "life,metric"), text("drop", "0"), text("boots", "1"), text("lines", "20"),
    text("method", "checkpoint"), text("params", "{}"),
  ),
});
const streams = options.streams.split(",");
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const tell = (what) => process.stderr.write(JSON.stringify(what) + "\n");

class Silent extends Error {}
class OtherBoot extends Error {}
class Refused extends Error {
  constructor(error) {
    super(error.message);
    this.kind = error.data.kind;
    this.after = error.data.retry_after_ms;
  }
}

function open(kind, endpoint, keys) {
  const socket = new kind({ linger: 0 });
  if (keys) {
    socket.ipv6 = true;
    socket.curveServerKey = keys.server;
    socket.curvePublicKey = keys.public;
    socket.curveSecretKey = keys.secret;
  }
  socket.connect(endpoint);
  return socket;
}

/* One of the request sockets: a DEALER, which adds the empty frame that a REQ would add. */
class Requests {
  constructor(endpoint, keys) {
    this.socket = open(zmq.Dealer, endpoint, keys);
    this.waiting = new Map();
    this.boot = null; // as `hello` said; then each request is meant for this boot only
    this.offset = 0; // of the daemon's clock, microseconds
    this.receive().catch((error) => this.fail(error));
  }

  async receive() {
    for await (const [empty, body, lines] of this.socket) {
      if (empty.length !== 0) throw new Error("a reply begins with an empty frame");
      const reply = JSON.parse(body.toString());
      const one = this.waiting.get(reply.id);
      if (one) one.resolve({ reply, lines });
    }
  }

  fail(error) {
    for (const one of this.waiting.values()) one.reject(error);
  }

  /* Ask until there is an answer, with the same bytes; gives `result`, the second frame, and the first frame. */
  async ask(method, params = {}, id = randomUUID()) {
    const meta = { v: 1, client: "client.js", expect: this.boot ? { boot: this.boot } : {} };
    if (this.boot) meta.deadline = Date.now() * 1000 + this.offset + PATIENCE_MS * 1000;
    return this.send(id, JSON.stringify({ jsonrpc: "2.0", id, method, params, meta }));
  }

  async send(id, body) {
    const answer = new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
    answer.catch(() => {});
    for (const end = Date.now() + PATIENCE_MS; Date.now() < end; ) {
      await this.socket.send(["", body]);
      const timer = sleep(RESEND_MS).then(() => null);
      const got = await Promise.race([answer, timer]);
      if (got === null) continue;
      this.waiting.delete(id);
      if (got.reply.error === undefined) return { id, body, result: got.reply.result, ...got };
      const error = new Refused(got.reply.error);
      if (error.kind === "boot_mismatch") throw new OtherBoot(error.message);
      if (error.kind !== "overloaded") throw error;
      await sleep(error.after);
      return this.send(id, body);
    }
    throw new Silent(`no answer to ${body}`);
  }

  /* Who it is, and by how much its clock is ahead of ours. */
  async hello() {
    const sent = Date.now();
    const { result, reply } = await this.ask("hello");
    if (result.protocol !== 1) throw new Error(`protocol ${result.protocol} is not spoken here`);
    this.offset = reply.meta.ts - ((sent + Date.now()) / 2) * 1000;
    this.boot = result.boot;
    return result;
  }

  close() {
    this.socket.close();
  }
}

/* The three endpoints: from the connection file, or the port that is known and the next two. */
async function locate() {
  if (options.connection) {
    for (;;) {
      try {
        const connection = JSON.parse(fs.readFileSync(options.connection, "utf8"));
        return { endpoints: connection.endpoints, keys: null };
      } catch (error) {
        if (error.code !== "ENOENT") throw error;
        await sleep(200); // no daemon lives at present
      }
    }
  }
  const keys = JSON.parse(fs.readFileSync(options.key, "utf8"));
  const [, host, port] = /^(tcp:\/\/.*:)(\d+)$/.exec(options.tcp);
  const endpoints = { qry: options.tcp, ctl: host + (Number(port) + 1), ev: host + (Number(port) + 2) };
  return { endpoints, keys };
}

const splitLines = (frame) => (frame && frame.length ? frame.toString().split("\n") : []);

/* What is known of the run, over its boots: per stream the newest line printed. */
class Reader {
  constructor() {
    this.last = {};
    this.newest = {};
    this.printed = 0;
    this.boots = 0;
    this.batches = 0;
    this.command = null;
  }

  /* Lines `first`, `first` + 1, ...: what was printed before is passed over, a hole is an error of ours. */
  deliver(stream, first, lines) {
    lines.forEach((line, index) => {
      const seq = first + index;
      if (seq <= this.last[stream]) return;
      const event = JSON.parse(line);
      if (event.seq !== seq || event.stream !== stream) throw new Error(`${stream} ${seq} says ${line.slice(0, 60)}`);
      if (seq !== this.last[stream] + 1) throw new Error(`a hole before ${stream} ${seq}`);
      process.stdout.write(line + "\n");
      this.last[stream] = seq;
      this.newest[stream] = line;
      this.printed += 1;
      this.note(event);
    });
  }

  /* The end of the command that was sent. */
  note(event) {
    const { type, data } = event;
    if (!this.command || data.id !== this.command.id) return;
    if (type === "command.failed") throw new Error(`${data.method}: ${data.message}`);
    if (type === "command.done") {
      tell({ done: data.result, method: data.method });
      this.command.done = true;
      this.printed = 0;
    }
  }

  /* Fill the hole up to `until` by `replay`. */
  async repair(qry, stream, until, why) {
    while (this.last[stream] < until) {
      const first = this.last[stream] + 1;
      const { result, lines } = await qry.ask("replay", { stream, first, last: until });
      if (result.n === 0) throw new Error(`nothing is held of ${stream} ${first}..${until}`);
      tell({ repaired: stream, first, last: result.last, why });
      this.deliver(stream, first, splitLines(lines));
    }
  }

  /* Steps 1 to 4; from there on everything goes by numbers. */
  async join(ev, qry) {
    for (const stream of streams) ev.subscribe(`1/${stream}`);
    ev.subscribe("1/hb"); // the last one: the heartbeat that answers it shows that all are in force
    const early = [];
    const isHeartbeat = ([topic, head]) => topic.toString() === "1/hb" && head !== undefined;
    while (!early.length || !isHeartbeat(early.at(-1))) early.push(await ev.receive());
    const { boot } = await qry.hello();
    const { result, lines } = await qry.ask("snapshot", { streams });
    const held = splitLines(lines);
    if (held.length !== result.n) throw new Error(`a snapshot of ${result.n} lines has ${held.length}`);
    for (const stream of streams) {
      if (this.last[stream] === undefined) this.last[stream] = result.seq[stream];
      else await this.resume(qry, stream, result.seq[stream]);
    }
    this.boots += 1;
    tell({ joined: boot, snapshot: held.length, seq: result.seq });
    for (const frames of early) await this.take(frames, qry);
  }

  /* Another boot: its numbers go on behind ours, if our newest line is the one that its journal has. */
  async resume(qry, stream, until) {
    const last = this.last[stream];
    if (last > until) throw new Error(`${stream} ${last} was lost with the machine's power`);
    if (this.newest[stream] !== undefined) {
      const { lines } = await qry.ask("replay", { stream, first: last, last });
      if (lines.toString() !== this.newest[stream]) throw new Error(`${stream} ${last} is another event now`);
    }
    await this.repair(qry, stream, until, "boot");
  }

  /* One published message. */
  async take([topic, head, body], qry) {
    if (head === undefined) return; // the welcome
    const header = JSON.parse(head.toString());
    if (header.boot !== qry.boot) throw new OtherBoot(header.boot);
    if (topic.toString() === "1/hb") {
      for (const stream of streams) await this.repair(qry, stream, header.last[stream], "heartbeat");
      if (header.bye !== null) throw new Silent(`the daemon has ended: ${header.bye}`);
      return;
    }
    const lines = splitLines(body);
    const { stream, first, last, n } = header;
    if (lines.length !== n || last - first + 1 !== n) throw new Error(`a batch of ${n} lines has ${lines.length}`);
    if (last > this.last[stream] && ++this.batches === Number(options.drop)) {
      tell({ dropped: stream, first, last });
      return;
    }
    await this.repair(qry, stream, first - 1, "batch");
    this.deliver(stream, first, lines);
  }

  /* A command and its repeat, which has no second effect. */
  async order(ctl) {
    const { id, body, result } = await ctl.ask(options.method, JSON.parse(options.params));
    this.command = { id, done: false };
    const again = await ctl.send(id, body);
    tell({ accepted: result, id, replayed: again.reply.meta.replayed });
  }

  get isDone() {
    return this.boots >= Number(options.boots) && this.command?.done && this.printed >= Number(options.lines);
  }
}

/* One boot, until all is done or the daemon is silent, gone or another. */
async function follow(reader, { endpoints, keys }) {
  const ev = open(zmq.Subscriber, endpoints.ev, keys);
  ev.receiveTimeout = SILENCE_MS;
  const [qry, ctl] = [new Requests(endpoints.qry, keys), new Requests(endpoints.ctl, keys)];
  reader.command = null;
  try {
    await reader.join(ev, qry);
    Object.assign(ctl, { boot: qry.boot, offset: qry.offset });
    await reader.order(ctl);
    while (!reader.isDone) await reader.take(await ev.receive(), qry);
  } finally {
    for (const socket of [ev, qry, ctl]) socket.close();
  }
}

async function main() {
  const reader = new Reader();
  while (!reader.isDone) {
    try {
      await follow(reader, await locate());
    } catch (error) {
      const again = error instanceof Silent || error instanceof OtherBoot || error.code === "EAGAIN";
      if (!again) throw error;
      tell({ again: error.message });
      await sleep(200);
    }
  }
}

main().then(
  () => process.exit(0),
  (error) => {
    tell({ failed: error.stack });
    process.exit(1);
  },
);
