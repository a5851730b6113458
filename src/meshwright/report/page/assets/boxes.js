// A cluster as boxes in boxes: groups of nodes, domains, nodes, devices.

const PAD = { inner: 3, outer: 6 };
export const GAP = 1;
// Pixels between groups of nodes.
const BESIDE = 22;

// Boxes in boxes: sizes of devices from the outermost to the innermost.
function levels(group) {
  const whole = group.nodes * group.per_node;
  const sizes = new Map();
  for (const domain of group.domains) if (domain.size < whole && domain.size > 1) sizes.set(domain.size, domain);
  if (!sizes.has(group.per_node) && group.per_node < whole && group.per_node > 1) sizes.set(group.per_node, null);
  return [...sizes].sort(([a], [b]) => b - a).map(([size, domain]) => ({ size, domain }));
}

// Where the boxes of groups, domains and nodes lie, and every device: `boxes` and `at`.
export function layout(data, width, devices) {
  const tile = devices <= 64 ? 26 : devices <= 256 ? 18 : devices <= 1024 ? 12 : devices <= 4096 ? 8 : devices <= 16384 ? 5 : 3;
  const boxes = [];
  const at = { x: new Float32Array(devices), y: new Float32Array(devices) };
  const rows = rowsOf(data.groups.map((group) => {
    const wide = whole(group, 0, 0, width).wide;
    boxes.length = 0;
    return { group, wide: Math.max(wide + 20, headed(group)) };
  }), width);
  let top = 0;
  rows.forEach(({ groups, wide }, number) => {
    const placed_ = groups.map((group, column) => {
      const left = column * (wide + BESIDE);
      return { x: left + 0.5, y: top + 0.5, wide: wide - 1, high: whole(group, left + 10, top + 28, wide).high + 38, group };
    });
    const high = Math.max(...placed_.map((box) => box.high));
    boxes.push(...placed_.map((box) => ({ ...box, high })));
    // A line with its words stands between groups that take a row each.
    const alone = groups.length === 1 && rows[number + 1]?.groups.length === 1;
    top += high + (number + 1 === rows.length ? 0 : alone ? 40 : BESIDE);
  });
  return { tile, boxes, at, height: top + 2 };

  function whole(group, x, y, wide) { return place(group.first, group.nodes * group.per_node, levels(group), 0, x, y, wide - 20); }

  function place(first, size, inside, depth, x, y, room) {
    if (!inside.length) {
      const across = Math.min(size, Math.max(1, size <= 8 ? Math.ceil(size / (size > 4 ? 2 : 1)) : Math.floor(Math.min(room, 16 * (tile + GAP)) / (tile + GAP))));
      for (let device = 0; device < size; device++) {
        at.x[first + device] = x + (device % across) * (tile + GAP);
        at.y[first + device] = y + Math.floor(device / across) * (tile + GAP);
      }
      return { wide: across * (tile + GAP) - GAP, high: Math.ceil(size / across) * (tile + GAP) - GAP };
    }
    const [{ size: part_, domain }, ...rest] = inside;
    const pad = rest.length ? PAD.outer : PAD.inner;
    const space = tile <= 5 ? 3 : 6;
    let [left, high, row, wide] = [x, 0, y, 0];
    // Rows of as many boxes each, so that none is left over alone.
    let [across, inRow] = [Infinity, 0];
    for (let from = 0; from < size; from += part_) {
      const number = Math.min(part_, size - from);
      let mark = boxes.length;
      let box = place(first + from, number, rest, depth + 1, left + pad, row + pad, rest.length ? squarish(number, room) : room);
      if (from === 0) {
        const [count, fit] = [Math.ceil(size / part_), Math.max(1, Math.floor((room + space) / (box.wide + 2 * pad + space)))];
        across = Math.ceil(count / Math.ceil(count / fit));
      }
      if (left > x && (inRow >= across || left + box.wide + 2 * pad > x + room)) {
        inRow = 0;
        boxes.length = mark;
        [left, row, high] = [x, row + high + space, 0];
        box = place(first + from, number, rest, depth + 1, left + pad, row + pad, rest.length ? squarish(number, room) : room);
      }
      inRow += 1;
      boxes.push({ x: left, y: row, wide: box.wide + 2 * pad, high: box.high + 2 * pad, domain, depth });
      left += box.wide + 2 * pad + space;
      high = Math.max(high, box.high + 2 * pad);
      wide = Math.max(wide, left - space - x);
    }
    return { wide, high: row - y + high };
  }

  function squarish(number, room) {
    return Math.min(room, Math.max(160, Math.sqrt(number) * (tile + GAP) * 2));
  }
}

// Pixels that the words above a group take, about.
const headed = (group) => groupWords(group).length * 7 + 100;

export const groupWords = (group) => {
  const nodes = `${group.nodes} ${group.nodes === 1 ? "node" : "nodes"} of ${group.per_node} ${group.device}`;
  return group.name === group.device ? nodes : `${group.name}: ${nodes}`;
};

// Groups in rows, in their order: those that take less than half the width beside each other, in columns of one width;
// two groups below each other, with the line between them.
function rowsOf(found, width) {
  const small = ({ wide }) => found.length > 2 && 2 * wide + BESIDE <= width;
  const rows = [];
  for (let first = 0; first < found.length;) {
    let behind = first + 1;
    if (small(found[first])) while (behind < found.length && small(found[behind])) behind += 1;
    const own = found.slice(first, behind);
    const fit = own.length === 1 ? 1 : Math.floor((width + BESIDE) / (Math.max(...own.map(({ wide }) => wide)) + BESIDE));
    const across = Math.ceil(own.length / Math.ceil(own.length / fit));
    const wide = Math.floor((width - (across - 1) * BESIDE) / across);
    for (let at = 0; at < own.length; at += across) rows.push({ groups: own.slice(at, at + across).map(({ group }) => group), wide });
    first = behind;
  }
  return rows;
}
