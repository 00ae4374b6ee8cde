// What clusters are, and what columns hold: lists of what Python has found.
const percent = (share) => (share === null ? '–' : `${format(100 * share, share < 0.1 ? 2 : 3)} %`);

function clusterCard(cluster, number) {
  const traits = cluster.traits.map(({ text, difference }) => el('li', {},
    el('span', { class: 'sign', 'aria-hidden': 'true' }, difference < 0 ? '▼' : '▲'), text));
  return el('article', { class: 'panel card', 'data-cluster': number },
    el('h3', {}, TREE ? el('span', { class: 'swatch', style: `background:${clusterColour(number)}` }) : null,
      `Cluster ${number}: ${percent(cluster.weight)} of the rows`),
    el('p', { class: 'muted' }, `${format(cluster.n_components)} component${cluster.n_components === 1 ? '' : 's'}, `
      + `${format(cluster.n_rows)} rows of this report`),
    traits.length ? el('ul', { class: 'traits' }, ...traits) : el('p', {}, 'Much like all rows.'));
}

function startClusters() {
  const n = DATA.clusters.length;
  byId('clusters').hidden = n < 2;
  if (n < 2) return;
  byId('clusters-note').textContent = `The mixture cut into ${n} clusters. Each is described by the columns in which it `
    + 'differs most from all rows, in standard deviations; the largest difference comes first.';
  const cards = byId('cluster-cards');
  const button = byId('clusters-show');
  button.hidden = !TREE;
  button.textContent = `Show these ${n} on the map`;
  button.addEventListener('click', () => {
    setLevel(n);
    byId('picture').scrollIntoView();
  });
  const draw = () => cards.replaceChildren(...DATA.clusters.map(clusterCard));
  listen('theme', draw);
  draw();
}

// Shares of variance of numbers; shares of right levels, against the most frequent one.
function predictedText(column) {
  if (column.predicted === null) return '–';
  if (column.baseline === 0) return `${percent(Math.max(0, column.predicted))} of the variance`;
  return `${percent(column.predicted)} right (most frequent: ${percent(column.baseline)})`;
}

function startSummaries() {
  const heads = [['Column', ''], ['Kind', ''], ['Values', ''], ['Step', 'n'], ['Missing', 'n'], ['Predicted by the others', 'n']];
  const known = DATA.summaries.some((column) => column.predicted !== null);
  byId('summaries-note').textContent = known
    ? 'Predicted by the others: every cell of some rows is compared with what the mixture expects from the other cells of its row.'
    : '';
  byId('summary-table').append(
    el('thead', {}, el('tr', {}, ...heads.map(([name, side]) => el('th', { scope: 'col', class: side || null }, name)))),
    el('tbody', {}, ...DATA.summaries.map((column, d) => el('tr', {},
      el('th', { scope: 'row' }, DATA.columns[d]),
      el('td', {}, column.kind),
      el('td', {}, column.content || '–'),
      el('td', { class: 'n' }, column.step === null ? '' : format(column.step, 6)),
      el('td', { class: 'n' }, column.missing ? percent(column.missing) : ''),
      el('td', { class: 'n' }, predictedText(column))))));
}
