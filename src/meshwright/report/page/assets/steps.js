// A step of a plan as columns: when every task runs, what it waits for, what lies in memory.

import { unpacked } from "page/packed.js";

// data: what Python's `picture_data` makes.
export async function stepOf(data) {
  const { tasks } = data;
  const [columns, memory] = await Promise.all([unpacked(tasks.packed), data.memory ? unpacked(data.memory.lines) : null]);
  const { kind, chunk, gap, beyond, joined = null } = columns;
  const count = tasks.count;
  const first = Int32Array.from(tasks.first);
  const workers = first.length - 1;
  const [start, end, unit, worker] = [new Float64Array(count), new Float64Array(count), new Int32Array(count), new Int32Array(count)];
  const chunks = 1 + Math.max(0, ...data.stages.chunk);
  const kinds = data.kinds.length;
  const usual = new Float64Array(workers * chunks * kinds);
  for (const [row, part, of, seconds] of tasks.usual) usual[(row * chunks + part) * kinds + of] = seconds;
  let number = 0;
  for (let row = 0; row < workers; row++) {
    let at = 0;
    for (let task = first[row]; task < first[row + 1]; task++) {
      number += columns.micro_batch[task];
      unit[task] = number;
      worker[task] = row;
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
    most: Math.floor(unit.reduce((most, own) => Math.max(most, own), 0) / data.segments) };
  step.stage = stageOf(data);
  return step;
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
