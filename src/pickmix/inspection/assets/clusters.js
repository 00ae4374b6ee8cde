// Clusters: what is left of the components after some merges, and their colours.
const TREE = DATA.tree.why ? null : DATA.tree;
const LIGHT = ['#0072b2', '#d55e00', '#009e73', '#c46a9c', '#a07a00', '#2f8fc4', '#7b4ea3', '#8c564b', '#5f6b7a', '#c2255c'];
const DARK = ['#4fb0ee', '#ff8a3d', '#35d0a0', '#e9a3cb', '#e6c34a', '#9bd6ff', '#b794e8', '#cf9a8d', '#a9b5c4', '#ff7aa8'];

// The cluster of each component when n are left, numbered by falling weight.
function labelsAt(n) {
  const merges = K - n;
  const cluster = Array.from({ length: K + merges }, (_, i) => i);
  for (let m = merges - 1; m >= 0; m -= 1) {
    cluster[TREE.left[m]] = cluster[K + m];
    cluster[TREE.right[m]] = cluster[K + m];
  }
  const weight = new Map();
  for (let k = 0; k < K; k += 1) {
    weight.set(cluster[k], (weight.get(cluster[k]) || 0) + COMPONENTS.weight[k]);
  }
  const order = [...weight.keys()].sort((a, b) => weight.get(b) - weight.get(a) || a - b);
  const number = new Map(order.map((root, place) => [root, place]));
  return cluster.slice(0, K).map((root) => number.get(root));
}

function clusterColour(label) {
  if (label < LIGHT.length) return (isDark() ? DARK : LIGHT)[label];
  // Far apart on the circle, one after another.
  return `hsl(${(label * 137.5 + 20) % 360} ${isDark() ? '65% 68%' : '60% 35%'})`;
}
const labelOf = (k) => (state.labels ? state.labels[k] : k);
const componentColour = (k) => clusterColour(labelOf(k));

// A cluster costs the merges below its cut: what a mixture with so few components loses at most.
function costAt(n) {
  let total = 0;
  for (let m = 0; m < K - n; m += 1) total += Math.max(0, TREE.cost[m]);
  return total;
}

function setLevel(n) {
  state.level = Math.min(K, Math.max(1, Math.round(n)));
  state.labels = labelsAt(state.level);
  tell('level');
}

function startLevels() {
  if (!TREE) {
    byId('level-bar').hidden = true;
    return;
  }
  const range = byId('level');
  const number = byId('level-number');
  number.max = K;
  // The slider moves in equal ratios: ten clusters and eleven differ, a thousand and one do not.
  const top = Math.log(K);
  const toLevel = (value) => Math.round(Math.exp((value / 1000) * top));
  const toValue = (level) => Math.round((1000 * Math.log(level)) / top);
  range.addEventListener('input', () => setLevel(toLevel(Number(range.value))));
  range.addEventListener('keydown', (event) => {
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    setLevel(state.level + step);
  });
  number.addEventListener('change', () => setLevel(Number(number.value) || 1));
  listen('level', () => {
    range.value = toValue(state.level);
    range.setAttribute('aria-valuetext', `${state.level} clusters`);
    number.value = state.level;
    const cost = costAt(state.level);
    byId('level-said').textContent = state.level === K
      ? 'Every component is a cluster of its own.'
      : `A mixture with ${format(state.level)} components would lose at most ${format(cost, 3)} nats per row.`;
  });
}
