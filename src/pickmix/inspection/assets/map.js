// The map: rows as points, components as ellipses, with zoom, hover and selection.
const MAP = DATA.map;
const ELLIPSES = MAP.cx.map((cx, k) => {
  const [a, b, c] = [MAP.xx[k], MAP.xy[k], MAP.yy[k]];
  if (cx === null || MAP.cy[k] === null || a === null) return null;
  return { x: cx, y: MAP.cy[k], xx: a, xy: b, yy: c };
});

function startMap() {
  const canvas = byId('map');
  const inset = { left: 48, right: 10, top: 8, bottom: 34 };
  const home = extent();
  let view = { ...home };
  let hovered = -1;

  // What most rows and all heavy components take up.
  function extent() {
    const span = (values, centres) => {
      const kept = values.slice(0, ROWS.nSampled).filter((v) => v !== null).sort((a, b) => a - b);
      if (!kept.length) kept.push(...centres.filter((v) => v !== null).sort((a, b) => a - b));
      if (!kept.length) return [0, 1];
      const at = (share) => kept[Math.min(kept.length - 1, Math.floor(share * kept.length))];
      let [low, high] = [at(0.002), at(0.998)];
      if (!(high > low)) [low, high] = [low - 1, high + 1];
      const margin = 0.05 * (high - low);
      return [low - margin, high + margin];
    };
    const [x0, x1] = span(MAP.x, MAP.cx);
    const [y0, y1] = span(MAP.y, MAP.cy);
    return { x0, x1, y0, y1 };
  }

  // Kept, as to ask the canvas makes the browser lay out the page.
  let box = { width: canvas.clientWidth, height: canvas.clientHeight };
  const size = () => box;
  const scaleX = () => (size().width - inset.left - inset.right) / (view.x1 - view.x0);
  const scaleY = () => (size().height - inset.top - inset.bottom) / (view.y1 - view.y0);
  const toX = (x) => inset.left + (x - view.x0) * scaleX();
  const toY = (y) => size().height - inset.bottom - (y - view.y0) * scaleY();

  function draw() {
    const { context, width, height } = prepare(canvas);
    box = { width, height };
    const [sx, sy] = [scaleX(), scaleY()];
    const [muted, grid, ink] = [colour('muted'), colour('line'), colour('text')];
    context.strokeStyle = grid;
    context.fillStyle = muted;
    context.lineWidth = 1;
    context.textAlign = 'center';
    for (const value of ticks(view.x0, view.x1, 6)) {
      context.beginPath();
      context.moveTo(toX(value), inset.top);
      context.lineTo(toX(value), height - inset.bottom);
      context.stroke();
      context.fillText(tickText(value), toX(value), height - inset.bottom + 14);
    }
    context.textAlign = 'right';
    for (const value of ticks(view.y0, view.y1, 5)) {
      context.beginPath();
      context.moveTo(inset.left, toY(value));
      context.lineTo(width - inset.right, toY(value));
      context.stroke();
      context.fillText(tickText(value), inset.left - 5, toY(value) + 4);
    }
    context.fillText(clip(context, MAP.names[0], width - inset.left - inset.right), width - inset.right, height - 5);
    context.save();
    context.translate(10, inset.top);
    context.rotate(-Math.PI / 2);
    context.fillText(clip(context, MAP.names[1], height - inset.top - inset.bottom), 0, 2);
    context.restore();

    context.save();
    context.beginPath();
    context.rect(inset.left, inset.top, width - inset.left - inset.right, height - inset.top - inset.bottom);
    context.clip();
    // A branch stands out from the others; beside a single component they stay.
    const focus = hasSelection();
    const faded = state.group ? 0.12 : 0.4;
    for (let row = 0; row < ROWS.n; row += 1) {
      if (MAP.x[row] === null || MAP.y[row] === null) continue;
      const own = isSelected(ROWS.component[row]);
      if (row >= ROWS.nSampled && !own) continue;
      context.globalAlpha = own || !focus ? 0.55 : faded;
      context.fillStyle = componentColour(ROWS.component[row]);
      const radius = own && focus ? 2.4 : 1.5;
      context.fillRect(toX(MAP.x[row]) - radius / 1.2, toY(MAP.y[row]) - radius / 1.2, radius * 1.7, radius * 1.7);
    }
    // Ellipses for the heaviest ones in view, as long as they leave room for the rows; the others
    // are dots until there is a closer look.
    let room = 0.2 * width * height;
    const drawn = [];
    for (const k of BY_WEIGHT) {
      const shape = ellipse(k, sx, sy);
      if (!shape) continue;
      room -= 4.5 * (shape.major + shape.minor);
      drawn.push([k, room > 0 ? shape : { ...shape, major: 1.4, minor: 1.4 }]);
    }
    // Light components first, so that heavy ones lie on top.
    for (let place = drawn.length - 1; place >= 0; place -= 1) {
      const [k, shape] = drawn[place];
      if (!isSelected(k) && k !== hovered) outline(context, k, shape, state.group ? 0.22 : 0.85, 1.1);
    }
    if (state.group) state.group.forEach((k) => outline(context, k, ellipse(k, sx, sy), 1, 1.6));
    if (state.component >= 0) outline(context, state.component, ellipse(state.component, sx, sy), 1, 3);
    if (hovered >= 0) outline(context, hovered, ellipse(hovered, sx, sy), 1, 2.4);
    context.globalAlpha = 1;
    context.strokeStyle = ink;
    context.lineWidth = 1.4;
    for (const odd of DATA.unusual) cross(context, odd.row, 3.5);
    if (state.row >= 0) {
      context.lineWidth = 2.5;
      cross(context, state.row, 7);
    }
    context.restore();
  }

  function cross(context, row, arm) {
    if (MAP.x[row] === null || MAP.y[row] === null) return;
    const [x, y] = [toX(MAP.x[row]), toY(MAP.y[row])];
    context.beginPath();
    context.moveTo(x - arm, y - arm);
    context.lineTo(x + arm, y + arm);
    context.moveTo(x - arm, y + arm);
    context.lineTo(x + arm, y - arm);
    context.stroke();
  }

  // A component on the screen; null if nothing of it is there.
  function ellipse(k, sx, sy) {
    const shape = ELLIPSES[k];
    if (!shape) return null;
    const [a, b, c] = [shape.xx * sx * sx, -shape.xy * sx * sy, shape.yy * sy * sy];
    const middle = (a + c) / 2;
    const half = Math.hypot((a - c) / 2, b);
    const major = Math.sqrt(Math.max(middle + half, 0.25));
    const minor = Math.sqrt(Math.max(middle - half, 0.25));
    const [x, y] = [toX(shape.x), toY(shape.y)];
    const { width, height } = size();
    if (x < -major || y < -major || x > width + major || y > height + major) return null;
    return { x, y, major, minor, turn: Math.atan2(b, (a - c) / 2) / 2 };
  }

  function outline(context, k, shape, alpha, line) {
    if (!shape) return;
    context.globalAlpha = alpha;
    context.strokeStyle = componentColour(k);
    context.lineWidth = line;
    context.beginPath();
    context.ellipse(shape.x, shape.y, shape.major, shape.minor, shape.turn, 0, 2 * Math.PI);
    context.stroke();
  }

  // The component whose ellipse is nearest, in its own standard deviations, or whose centre is.
  function find(px, py) {
    const x = view.x0 + (px - inset.left) / scaleX();
    const y = view.y0 + (size().height - inset.bottom - py) / scaleY();
    const [floorX, floorY] = [(3 / scaleX()) ** 2, (3 / scaleY()) ** 2];
    let [best, least] = [-1, 6];
    ELLIPSES.forEach((shape, k) => {
      if (!shape) return;
      const [a, c] = [shape.xx + floorX, shape.yy + floorY];
      const [dx, dy] = [x - shape.x, y - shape.y];
      const area = a * c - shape.xy * shape.xy;
      const far = (c * dx * dx - 2 * shape.xy * dx * dy + a * dy * dy) / area;
      if (far < least) [best, least] = [k, far];
    });
    return best;
  }

  function zoom(factor, px = size().width / 2, py = size().height / 2) {
    const x = view.x0 + (px - inset.left) / scaleX();
    const y = view.y1 - (py - inset.top) / scaleY();
    const near = (home.x1 - home.x0) / (view.x1 - view.x0);
    if ((factor > 1 && near > 1e5) || (factor < 1 && near < 0.2)) return;
    view = {
      x0: x - (x - view.x0) / factor, x1: x + (view.x1 - x) / factor,
      y0: y - (y - view.y0) / factor, y1: y + (view.y1 - y) / factor,
    };
    redraw();
  }
  function move(dx, dy) {
    const [x, y] = [dx / scaleX(), dy / scaleY()];
    view = { x0: view.x0 - x, x1: view.x1 - x, y0: view.y0 + y, y1: view.y1 + y };
    redraw();
  }
  function reset() {
    view = { ...home };
    redraw();
  }

  // From the selected component to the nearest one in a direction of the screen.
  function step(dx, dy) {
    const from = ELLIPSES[state.component];
    if (!from) {
      const first = BY_WEIGHT.find((k) => ELLIPSES[k]);
      if (first !== undefined) select(first);
      return;
    }
    let [best, least] = [-1, Infinity];
    ELLIPSES.forEach((shape, k) => {
      if (!shape || k === state.component) return;
      const [x, y] = [(shape.x - from.x) * scaleX(), -(shape.y - from.y) * scaleY()];
      const along = x * dx + y * dy;
      const aside = Math.abs(x * dy) + Math.abs(y * dx);
      if (along > 0 && aside <= along * 1.5 && along + 2 * aside < least) [best, least] = [k, along + 2 * aside];
    });
    if (best < 0) return;
    select(best);
    const [x, y] = [toX(ELLIPSES[best].x), toY(ELLIPSES[best].y)];
    const { width, height } = size();
    if (x < inset.left || x > width - 20 || y < inset.top || y > height - inset.bottom) move(width / 2 - x, height / 2 - y);
  }

  const redraw = drawer(draw);
  const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  wire(canvas, {
    find, move, zoom, reset,
    about: (k) => `Component ${k} · weight ${format(COMPONENTS.weight[k], 3)} · ${format(COMPONENTS.rows[k])} rows`
      + (state.labels ? ` · cluster ${labelOf(k)}` : ''),
    hover: (k) => { hovered = k; redraw(); },
    pick: (k) => (k >= 0 ? select(k) : clearSelection()),
    arrow: (key, shift) => {
      const [dx, dy] = arrows[key];
      if (shift) move(-60 * dx, -60 * dy);
      else step(dx, dy);
    },
  });
  const drawn = ROWS.nSampled;
  canvas.setAttribute('aria-label', `Map of ${format(drawn)} rows and ${format(K)} components by `
    + `${MAP.names[0]} and ${MAP.names[1]}. Arrow keys go from component to component.`);
  byId('map-note').textContent = `${format(drawn)} rows; ellipses reach one standard deviation`
    + `${K > 300 ? ', light components may be dots' : ''}`
    + `${DATA.unusual.length ? '; crosses are unusual rows' : ''}. `
    + 'Click to select, drag to move; the wheel zooms after a click.';
  for (const what of ['select', 'level', 'theme']) listen(what, redraw);
  new ResizeObserver(redraw).observe(canvas);
  draw();
  return { view: () => ({ ...view }), place: (k) => [toX(ELLIPSES[k].x), toY(ELLIPSES[k].y)], zoom };
}

// As much of a text as there is room for.
function clip(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let length = text.length;
  while (length > 1 && context.measureText(`${text.slice(0, length)}…`).width > room) length -= 1;
  return `${text.slice(0, length)}…`;
}
