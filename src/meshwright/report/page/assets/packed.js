// Columns of numbers as Python's `packed` writes them: one behind the other, deflated, in characters.

const TYPES = { i1: Int8Array, u1: Uint8Array, i2: Int16Array, u2: Uint16Array, i4: Int32Array, u4: Uint32Array, f4: Float32Array, f8: Float64Array };

// What was unpacked before it is drawn stands ready: a browser inflates in turns of its own, between which it would paint.
const ready = new WeakMap();

export function unpacked(packed) {
  if (!ready.has(packed)) ready.set(packed, inflated(packed));
  return ready.get(packed);
}

// All columns in the data of a view, unpacked before anybody asks for them.
export function allUnpacked(data) {
  if (data === null || typeof data !== "object") return null;
  return data.deflated ? unpacked(data) : Promise.all(Object.values(data).filter((one) => one && typeof one === "object").map(allUnpacked));
}

async function inflated({ columns, deflated }) {
  const letters = atob(deflated);
  const packed = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) packed[at] = letters.charCodeAt(at);
  const stream = new DecompressionStream("deflate");
  const writer = stream.writable.getWriter();
  // Where the bytes are broken, the reader says so.
  writer.write(packed).catch(() => {});
  writer.close().catch(() => {});
  const whole = await new Response(stream.readable).arrayBuffer();
  const found = {};
  let at = 0;
  for (const [name, type, length] of columns) {
    const bytes = length * TYPES[type].BYTES_PER_ELEMENT;
    found[name] = new TYPES[type](whole.slice(at, at + bytes));
    at += bytes;
  }
  return found;
}
