// The tree of merges: leaves are components, or clusters if it is folded at the cut.
function startTree() {
  if (!TREE) {
    byId('tree-panel').hidden = true;
    byId('pictures').classList.add('single');
    byId('picture-title').textContent = 'Map';
    document.querySelector('nav a[href="#picture"]').textContent = 'Map';
    byId('map-note').append(` ${DATA.tree.why}`);
    return null;
  }
  const canvas = byId('tree');
  const inset = { left: 58, right: 12, top: 10, bottom: 22 };
  const nNodes = 2 * K - 1;
  const parent = new Int32Array(nNodes).fill(-1);
  const weight = new Float64Array(nNodes);
  COMPONENTS.weight.forEach((w, k) => { weight[k] = w; });
  for (let m = 0; m < K - 1; m += 1) {
    parent[TREE.left[m]] = K + m;
    parent[TREE.right[m]] = K + m;
    weight[K + m] = weight[TREE.left[m]] + weight[TREE.right[m]];
  }
  const heights = TREE.height.map((h) => Math.max(0, h || 0));
  const tallest = heights[K - 2] || 1;
  // Costs differ by powers of ten: the picture shows their logarithms. The cheapest merges, which
  // may cost next to nothing, stand at the bottom together.
  const least = Math.min(tallest / 2, Math.max(tallest * 1e-6, heights[Math.floor(0.04 * K)] || 0));
  const share = (h) => (h <= least ? 0.03 : 0.03 + (0.97 * Math.log(h / least)) / (Math.log(tallest / least) || 1));
  const level = (node) => (node < K ? 0 : share(heights[node - K]));
  let folded = false;
  let view = { x0: -0.5, x1: K - 0.5 };
  let position = new Float64Array(nNodes);
  let nLeaves = K;
  let node = -1;
  let hovered = -1;
  const cutAt = () => K - state.level; // Merges below the cut; node K + m is below it if m < cutAt().
  const isFolded = (n) => folded && n >= K && n - K < cutAt();
  const isHidden = (n) => folded && parent[n] >= 0 && parent[n] - K < cutAt();

  function layout() {
    position = new Float64Array(nNodes).fill(NaN);
    nLeaves = 0;
    const seen = new Set();
    for (const k of TREE.order) {
      let leaf = k;
      while (isHidden(leaf)) leaf = parent[leaf];
      if (!seen.has(leaf)) {
        seen.add(leaf);
        position[leaf] = nLeaves;
        nLeaves += 1;
      }
    }
    for (let n = K; n < nNodes; n += 1) {
      if (Number.isNaN(position[n]) && !isHidden(n)) {
        position[n] = (position[TREE.left[n - K]] + position[TREE.right[n - K]]) / 2;
      }
    }
  }
  // Kept, as to ask the canvas makes the browser lay out the page.
  let box = { width: canvas.clientWidth, height: canvas.clientHeight };
  const size = () => box;
  const scale = () => (size().width - inset.left - inset.right) / (view.x1 - view.x0);
  const toX = (x) => inset.left + (x - view.x0) * scale();
  const toY = (l) => size().height - inset.bottom - l * (size().height - inset.top - inset.bottom);

  function leavesOf(n) {
    const found = [];
    const waiting = [n];
    while (waiting.length) {
      const next = waiting.pop();
      if (next < K) found.push(next);
      else waiting.push(TREE.left[next - K], TREE.right[next - K]);
    }
    return found;
  }

  // Which nodes hold nothing but selected components.
  function marks() {
    const marked = new Uint8Array(nNodes);
    if (!hasSelection()) return marked;
    for (let k = 0; k < K; k += 1) marked[k] = isSelected(k) ? 1 : 0;
    for (let m = 0; m < K - 1; m += 1) marked[K + m] = marked[TREE.left[m]] & marked[TREE.right[m]];
    return marked;
  }

  function draw() {
    const { context, width, height } = prepare(canvas);
    box = { width, height };
    const [muted, grid, ink] = [colour('muted'), colour('line'), colour('text')];
    context.fillStyle = muted;
    context.textAlign = 'right';
    context.lineWidth = 1;
    for (const value of powerTicks(least, tallest)) {
      const y = toY(share(value));
      context.strokeStyle = grid;
      context.beginPath();
      context.moveTo(inset.left, y);
      context.lineTo(width - inset.right, y);
      context.stroke();
      context.fillText(tickText(value), inset.left - 5, y + 4);
    }
    context.save();
    context.translate(10, inset.top);
    context.rotate(-Math.PI / 2);
    context.fillText('nats per row', 0, 2);
    context.restore();

    context.save();
    context.beginPath();
    context.rect(inset.left, 0, width - inset.left - inset.right, height);
    context.clip();
    const marked = marks();
    const cut = cutAt();
    const thin = scale() > 3 ? 1.1 : 0.6;
    // Paths of one colour are drawn together: thousands of strokes would take too long.
    const paths = new Map();
    const add = (n, style, line, alpha) => {
      const key = `${style}|${line}|${alpha}`;
      if (!paths.has(key)) paths.set(key, []);
      paths.get(key).push(n);
    };
    for (let n = K; n < nNodes; n += 1) {
      if (isHidden(n) || isFolded(n)) continue;
      const [l, r] = [position[TREE.left[n - K]], position[TREE.right[n - K]]];
      if (Math.max(l, r) < view.x0 - 1 || Math.min(l, r) > view.x1 + 1) continue;
      const style = n - K < cut ? componentColour(firstLeaf(n)) : muted;
      const on = marked[n] || n === node || n === hovered;
      add(n, style, on ? 2.6 : thin, state.group && !on ? 0.35 : 1);
    }
    for (const [key, nodes] of paths) {
      const [style, line, alpha] = key.split('|');
      context.strokeStyle = style;
      context.lineWidth = Number(line);
      context.globalAlpha = Number(alpha);
      context.beginPath();
      for (const n of nodes) {
        const [l, r] = [TREE.left[n - K], TREE.right[n - K]];
        const y = toY(level(n));
        context.moveTo(toX(position[l]), toY(level(l)));
        context.lineTo(toX(position[l]), y);
        context.lineTo(toX(position[r]), y);
        context.lineTo(toX(position[r]), toY(level(r)));
      }
      context.stroke();
    }
    leaves(context, marked);
    context.globalAlpha = 1;
    if (cut > 0 && cut < K - 1) {
      const y = toY((share(heights[cut - 1]) + share(heights[cut])) / 2);
      context.strokeStyle = ink;
      context.setLineDash([5, 4]);
      context.lineWidth = 1.2;
      context.beginPath();
      context.moveTo(inset.left, y);
      context.lineTo(width, y);
      context.stroke();
      context.setLineDash([]);
    }
    context.restore();
  }

  const firstLeaf = (n) => {
    let leaf = n;
    while (leaf >= K) leaf = TREE.left[leaf - K];
    return leaf;
  };

  // Folded clusters as triangles, leaves as ticks; numbers where there is room.
  function leaves(context, marked) {
    const room = scale();
    const base = toY(0);
    context.textAlign = 'center';
    for (let n = 0; n < nNodes; n += 1) {
      const leaf = folded ? !isHidden(n) && (n < K || isFolded(n)) : n < K;
      if (!leaf || position[n] < view.x0 - 1 || position[n] > view.x1 + 1) continue;
      const x = toX(position[n]);
      const own = marked[n] || n === node || n === hovered;
      context.globalAlpha = state.group && !own ? 0.35 : 1;
      context.fillStyle = componentColour(firstLeaf(n));
      if (isFolded(n)) {
        const half = Math.max(1.5, Math.min(0.42 * room, 22));
        context.beginPath();
        context.moveTo(x, toY(level(n)));
        context.lineTo(x + half, base);
        context.lineTo(x - half, base);
        context.fill();
      } else if (room > 2.5 || own) {
        const half = own ? 3 : Math.min(2, room / 3);
        context.fillRect(x - half, base - 1, 2 * half, own ? 6 : 4);
      }
      if (room > 30 || own) {
        context.fillStyle = colour('text');
        context.fillText(folded ? labelOf(firstLeaf(n)) : n, x, base + 15);
      }
    }
  }

  // The node whose lines or leaf are nearest to a place on the screen.
  function find(px, py) {
    let [best, least2] = [-1, 12];
    for (let n = 0; n < nNodes; n += 1) {
      if (Number.isNaN(position[n]) || isHidden(n)) continue;
      let far;
      if (n < K || isFolded(n)) {
        const low = Math.abs(px - toX(position[n]));
        far = py > toY(Math.max(level(n), 0.02)) ? low : Math.hypot(low, py - toY(level(n)));
      } else {
        const [l, r] = [toX(position[TREE.left[n - K]]), toX(position[TREE.right[n - K]])];
        const aside = Math.max(0, Math.min(l, r) - px, px - Math.max(l, r));
        far = Math.hypot(aside, py - toY(level(n)));
      }
      if (far < least2) [best, least2] = [n, far];
    }
    return best;
  }
  const nameOf = (n) => (n < K ? `Component ${n}`
    : folded && isFolded(n) ? `Cluster ${labelOf(firstLeaf(n))}` : `Branch of ${leavesOf(n).length} components`);

  function choose(n) {
    node = n;
    if (n < 0) clearSelection();
    else if (n < K) select(n);
    else selectGroup(leavesOf(n), nameOf(n));
    node = n;
    show(n);
    redraw();
  }
  // Bring a node into view.
  function show(n) {
    if (n < 0 || Number.isNaN(position[n])) return;
    const half = (view.x1 - view.x0) / 2;
    if (position[n] < view.x0 || position[n] > view.x1) view = { x0: position[n] - half, x1: position[n] + half };
  }

  function zoom(factor, px = size().width / 2) {
    const x = view.x0 + (px - inset.left) / scale();
    let [x0, x1] = [x - (x - view.x0) / factor, x + (view.x1 - x) / factor];
    if (x1 - x0 < 2 && factor > 1) return;
    if (x1 - x0 >= nLeaves) [x0, x1] = [-0.5, nLeaves - 0.5];
    view = { x0, x1 };
    redraw();
  }
  function move(dx) {
    const x = dx / scale();
    const low = Math.min(Math.max(view.x0 - x, -0.5), nLeaves - 0.5 - (view.x1 - view.x0));
    view = { x0: low, x1: low + (view.x1 - view.x0) };
    redraw();
  }
  function reset() {
    view = { x0: -0.5, x1: nLeaves - 0.5 };
    redraw();
  }

  function step(key) {
    if (node < 0 || Number.isNaN(position[node]) || isHidden(node)) {
      choose(state.component >= 0 && !isHidden(state.component) ? state.component : nNodes - 1);
      return;
    }
    let next = -1;
    if (key === 'ArrowUp') next = parent[node];
    if (key === 'ArrowDown' && node >= K && !isFolded(node)) {
      const [l, r] = [TREE.left[node - K], TREE.right[node - K]];
      next = weight[l] >= weight[r] ? l : r;
    }
    if (key === 'ArrowLeft' || key === 'ArrowRight') {
      // The nearest node to that side that is a leaf like this one, or that stands as high.
      const side = key === 'ArrowRight' ? 1 : -1;
      let nearest = Infinity;
      for (let n = 0; n < nNodes; n += 1) {
        if (Number.isNaN(position[n]) || isHidden(n) || n === node) continue;
        const isLeaf = n < K || isFolded(n);
        if ((node < K || isFolded(node)) !== isLeaf) continue;
        if (!isLeaf && !(level(n) <= level(node) && (parent[n] < 0 || level(parent[n]) >= level(node)))) continue;
        const away = (position[n] - position[node]) * side;
        if (away > 0 && away < nearest) [next, nearest] = [n, away];
      }
    }
    if (next >= 0) choose(next);
  }

  const redraw = drawer(draw);
  wire(canvas, {
    find, move, zoom, reset,
    about: (n) => `${nameOf(n)} · weight ${format(weight[n], 3)}`
      + (n >= K ? ` · merge costs ${format(TREE.cost[n - K], 3)} nats per row` : ''),
    hover: (n) => { hovered = n; redraw(); },
    pick: choose,
    arrow: step,
  });
  byId('tree-fold').addEventListener('change', (event) => {
    folded = event.target.checked;
    layout();
    reset();
  });
  canvas.setAttribute('aria-label', `Tree of merges of ${format(K)} components. The last merge costs `
    + `${format(TREE.cost[K - 2], 3)} nats per row. Arrow keys go from branch to branch.`);
  byId('tree-note').textContent = `${format(K)} components at the bottom. The height of a merge is what it costs, in nats `
    + 'per row; the dashed line is the cut into clusters. Click a branch to see its components.';
  listen('select', () => {
    if (node >= K && state.group === null) node = -1;
    if (state.component >= 0) {
      node = state.component;
      while (isHidden(node)) node = parent[node];
      show(node);
    }
    if (!hasSelection()) node = -1;
    redraw();
  });
  listen('level', () => {
    if (folded) {
      layout();
      view = { x0: -0.5, x1: nLeaves - 0.5 };
    }
    redraw();
  });
  listen('theme', redraw);
  layout();
  new ResizeObserver(redraw).observe(canvas);
  return { view: () => ({ ...view }), nLeaves: () => nLeaves };
}

// Round numbers on a scale of logarithms.
function powerTicks(low, high) {
  const steps = Math.log10(high / low) > 2.5 ? [1] : [1, 2, 5];
  const found = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high); p += 1) {
    for (const step of steps) {
      const value = Number((step * 10 ** p).toPrecision(1));
      if (value >= low && value <= high) found.push(value);
    }
  }
  const every = Math.ceil(found.length / 7);
  return found.filter((_, place) => place % every === 0);
}
