// The most unusual rows, and which of their cells make them so.
const soFar = (value) => (typeof value === 'number' ? format(value, 4).replaceAll(',', '') : shown(value));

function reasonText([column, observed, expected, spread, , isLevel, unit]) {
  if (isLevel) return `${column} is ${shown(observed)}; ${soFar(expected)} was expected (probability ${format(spread, 2)})`;
  return `${column} is ${shown(observed)}; ${soFar(expected)} ± ${format(spread, 2)}${unit ? ` ${unit}` : ''} was expected`;
}

function unusualRow(odd, place) {
  const reasons = odd.reasons;
  const head = ['column', 'observed', 'expected', 'spread', 'surprise, nats'];
  const score = odd.score === null ? '' : ` · score ${format(odd.score, 3)}`;
  const cells = DATA.columns.slice(0, 8).map((name, d) => `${name} ${shown(cell(ROWS.cells[d], odd.row))}`).join(' · ');
  return el('details', { class: 'odd', open: place < 3, 'data-row': odd.row },
    el('summary', {}, el('strong', {}, ROWS.id ? ROWS.id[odd.row] : `Row ${format(ROWS.number[odd.row])}`),
      el('span', { class: 'label' }, ROWS.id ? ` row ${format(ROWS.number[odd.row])}` : '', score, ` · log-density ${format(odd.density, 4)} · `),
      reasons.length ? reasonText(reasons[0]) : cells),
    el('div', {},
      reasons.length ? el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `Reasons for ${rowName(odd.row)}` },
        el('table', { class: 'plain' },
          el('thead', {}, el('tr', {}, ...head.map((name, i) => el('th', { scope: 'col', class: i ? 'n' : null }, name)))),
          el('tbody', {}, ...reasons.map(([column, observed, expected, spread, , isLevel, unit, surprise, together]) => el('tr', {},
            el('th', { scope: 'row' }, column),
            el('td', { class: 'n' }, shown(observed)),
            el('td', { class: 'n' }, soFar(expected)),
            el('td', { class: 'n' }, isLevel ? `p = ${format(spread, 3)}` : `± ${format(spread, 3)}${unit ? ` ${unit}` : ''}`),
            el('td', { class: 'n' }, `${format(surprise, 3)}${together ? ` with ${together}` : ''}`)))))) : el('p', {}, cells),
      el('p', { class: 'note' }, odd.scale ? `Most unusual at this scale: ${odd.scale}. ` : '', 'Its most probable component is ',
        el('button', {
          type: 'button', class: 'link',
          onclick: () => {
            select(odd.component, odd.row);
            byId('details').scrollIntoView({ block: 'nearest' });
            byId('details').focus({ preventScroll: true });
          },
        }, odd.component), '.')));
}

function startUnusual() {
  if (!DATA.unusual.length) {
    byId('unusual-note').textContent = 'No rows were asked for.';
    return;
  }
  byId('unusual-note').textContent = DATA.unusualBy;
  byId('unusual-rows').append(...DATA.unusual.map(unusualRow));
}
