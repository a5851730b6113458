// A drawing that stands there takes in what a new one says: elements of one shape keep their place, and the browser lays
// out and paints what differs alone. What listens on them is the old drawing's, so it is for the time of a pull: what is
// drawn when the slider is let go listens for itself.

// What the reader opened stays open.
const OF_THE_READER = new Set(["open"]);

export function renewed(host, fresh) {
  const own = [...host.childNodes];
  fresh.forEach((node, at) => (own[at] ? one(own[at], node) : host.append(node)));
  own.slice(fresh.length).forEach((node) => node.remove());
}

function one(old, fresh) {
  // A canvas has its pixels, not its attributes, to say.
  if (old.nodeName !== fresh.nodeName || old.nodeName === "CANVAS") return old.replaceWith(fresh);
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return null;
  }
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !OF_THE_READER.has(name)) old.removeAttribute(name);
  return renewed(old, [...fresh.childNodes]);
}
