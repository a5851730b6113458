// A step of a plan as columns: when every task runs, what it waits for, what lies in memory.

import { unpacked } from "page/packed.js";

// data: what Python's `picture_data` makes.
export async function stepOf(data) {
  const { tasks } = data;
  const [order, { gap, beyond }, memory] = await Promise.all([orderOf(tasks), unpacked(tasks.times), data.memory ? linesOf(data.memory) : null]);
  const { kind, chunk, unit, worker, joined } = order;
  const count = tasks.count;
  const first = Int32Array.from(tasks.first);
  const workers = first.length - 1;
  const [start, end] = [new Float64Array(count), new Float64Array(count)];
  const chunks = 1 + Math.max(0, ...data.stages.chunk);
  const kinds = data.kinds.length;
  const usual = new Float64Array(workers * chunks * kinds);
  for (const [row, part, of, seconds] of tasks.usual) usual[(row * chunks + part) * kinds + of] = seconds;
  for (let row = 0; row < workers; row++) {
    let at = 0;
    for (let task = first[row]; task < first[row + 1]; task++) {
      if (joined && joined[task]) {
        start[task] = start[task - 1];
        end[task] = end[task - 1];
        continue;
      }
      start[task] = at + gap[task] * tasks.tick_s;
      end[task] = at = start[task] + usual[(row * chunks + chunk[task]) * kinds + kind[task]] + beyond[task] * tasks.tick_s;
    }
  }
  const critical = [];
  for (const step of data.critical) critical.push((critical.at(-1) ?? 0) + step);
  const step = { data, count, workers, chunks, first, kind, chunk, unit, worker, start, end, joined, critical, memory, end_s: data.end_s,
    used: order.used, most: Math.floor(order.most / data.segments) };
  step.stage = stageOf(data);
  return step;
}

// What a table's tasks are, worker after worker: the same while a slider moves, so that the last ones are kept.
const [orders, MOST_ORDERS] = [new Map(), 4];
async function orderOf({ count, first, order }) {
  const known = orders.get(order.deflated);
  if (known) return known;
  const { kind, chunk, micro_batch, joined = null } = await unpacked(order);
  const [unit, worker] = [new Int32Array(count), new Int32Array(count)];
  let [number, most] = [0, 0];
  for (let row = 0; row + 1 < first.length; row++) {
    for (let task = first[row]; task < first[row + 1]; task++) {
      unit[task] = number += micro_batch[task];
      worker[task] = row;
      most = Math.max(most, number);
    }
  }
  const found = { kind, chunk, unit, worker, joined, most, used: [...new Set(kind)].sort((a, b) => a - b) };
  orders.set(order.deflated, found);
  if (orders.size > MOST_ORDERS) orders.delete(orders.keys().next().value);
  return found;
}

// Memory of all workers as columns: moments, and bytes of activations from each to the next.
export async function linesOf({ first, tick_s, lines }) {
  const { after, live_bytes } = await unpacked(lines);
  const at_s = new Float64Array(after.length);
  for (let row = 0; row + 1 < first.length; row++) {
    let ticks = 0;
    for (let at = first[row]; at < first[row + 1]; at++) at_s[at] = (ticks += after[at]) * tick_s;
  }
  return { at_s, live_bytes };
}

// The virtual stage of a worker's chunk.
function stageOf({ stages }) {
  const chunks = 1 + Math.max(0, ...stages.chunk);
  const places = new Map(stages.worker.map((row, stage) => [row * chunks + stages.chunk[stage], stage]));
  return (row, chunk) => places.get(row * chunks + chunk);
}

// Tasks of one micro-batch of one chain in the order in which it visits them.
export function wayOf(step, task) {
  const { stages } = step.data;
  const chain = (at) => stages.chain[step.stage(step.worker[at], step.chunk[at])];
  const [unit, own] = [step.unit[task], chain(task)];
  const found = [];
  for (let at = 0; at < step.count; at++) if (step.unit[at] === unit && chain(at) === own) found.push(at);
  const backward = (at) => ["B", "I"].includes(step.data.kinds[step.kind[at]]);
  const passes = found.filter((at) => step.data.kinds[step.kind[at]] === "F" || backward(at));
  return { tasks: found, passes: passes.sort((a, b) => step.start[a] - step.start[b] || a - b) };
}

// The first task of a row that ends after a moment.
export function taskAfter(step, row, moment) {
  let [low, high] = [step.first[row], step.first[row + 1]];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (step.end[middle] <= moment) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The task of a row that runs at a moment; of two that run together the one of that half of the row. -1 for none.
export function taskAt(step, row, moment, lower = false) {
  const found = taskAfter(step, row, moment);
  if (found >= step.first[row + 1] || step.start[found] > moment) return -1;
  const pair = step.joined && found + 1 < step.first[row + 1] && step.joined[found + 1];
  return pair && lower ? found + 1 : found;
}

// Bytes of activations on a worker at a moment.
export function liveAt(step, row, moment) {
  const { at_s, live_bytes } = step.memory;
  let [low, high] = [step.data.memory.first[row], step.data.memory.first[row + 1]];
  const begin = low;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (at_s[middle] <= moment) low = middle + 1;
    else high = middle;
  }
  return low > begin ? live_bytes[low - 1] : 0;
}
