// Begin: the theme, the parts, the keys, printing.
function startTheme() {
  const root = document.documentElement;
  const button = byId('theme-button');
  const system = window.matchMedia('(prefers-color-scheme: dark)');
  let kept = null;
  // Files that are opened from a disk may have no storage.
  try { kept = localStorage.getItem('pickmix-theme'); } catch { kept = null; }
  const apply = (theme) => {
    root.dataset.theme = theme;
    state.dark = theme === 'dark';
    button.textContent = theme === 'dark' ? 'Light' : 'Dark';
    button.setAttribute('aria-label', `Switch to ${theme === 'dark' ? 'light' : 'dark'} colours`);
    tell('theme');
  };
  apply(kept || (system.matches ? 'dark' : 'light'));
  system.addEventListener('change', () => { if (!kept) apply(system.matches ? 'dark' : 'light'); });
  button.addEventListener('click', () => {
    kept = isDark() ? 'light' : 'dark';
    try { localStorage.setItem('pickmix-theme', kept); } catch { /* It then lasts as long as the page. */ }
    apply(kept);
  });
  return apply;
}

function startKeys() {
  const help = byId('help');
  byId('help-button').addEventListener('click', () => help.showModal());
  byId('help-close').addEventListener('click', () => help.close());
  document.addEventListener('keydown', (event) => {
    const typing = event.target.matches('input, textarea, select');
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (event.key === 'Escape') {
      const search = byId('search');
      const searched = search.value !== '';
      search.value = '';
      if (searched) search.dispatchEvent(new Event('input'));
      if (hasSelection()) clearSelection();
    } else if (event.key === '/' && !typing) {
      event.preventDefault();
      byId('search').focus();
    } else if (event.key === '?' && !typing) {
      help.showModal();
    }
  });
}

// Paper is white and has no buttons: everything is opened and drawn in light colours.
function startPrinting(apply) {
  let before = null;
  window.addEventListener('beforeprint', () => {
    before = { theme: document.documentElement.dataset.theme, closed: [...document.querySelectorAll('details:not([open])')] };
    before.closed.forEach((part) => { part.open = true; });
    if (!byId('columns-more').hidden) byId('columns-more').click();
    apply('light');
  });
  window.addEventListener('afterprint', () => {
    if (!before) return;
    before.closed.forEach((part) => { part.open = false; });
    apply(before.theme);
    before = null;
  });
}

startLevels();
startVerdict();
const apply = startTheme();
if (TREE) setLevel(Math.min(K, 10));
const map = startMap();
const tree = startTree();
startTable();
startDetails();
startClusters();
startSummaries();
startColumns();
startUnusual();
startKeys();
startPrinting(apply);
if (TREE) tell('level');
select(BY_WEIGHT[0]);
say('');
byId('foot').textContent = `Made by pickmix ${DATA.version} on ${DATA.made.slice(0, 10)} at ${DATA.made.slice(11, 16)}. `
  + 'Log-densities are natural logarithms. This file needs no network.';
// For tests and for the curious: what the page shows now.
window.pickmixReport = { data: DATA, state, select, selectGroup, setLevel, labelsAt, map, tree };
document.documentElement.dataset.ready = 'true';
