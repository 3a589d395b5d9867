// The token tree that a row verifies: a circle per draft, levels from left to right.

const LEVEL = 13, LEAF = 11, RADIUS = 3.5; // CSS pixels
const TALLEST = 120; // of a drawing; larger trees are drawn closer together

/** Levels and heights of the nodes, node 0 first: leaves stand below each other, a parent beside its first child. */
function placeTree(parents) {
  const level = [0], children = [[]];
  parents.forEach((parent, i) => {
    level.push(level[parent] + 1);
    children.push([]);
    children[parent].push(i + 1);
  });
  const leaf = [];
  let leaves = 0;
  const stack = [0];
  while (stack.length) {
    const node = stack.pop();
    leaf[node] = leaves;
    if (!children[node].length) leaves++;
    for (let i = children[node].length - 1; i >= 0; i--) stack.push(children[node][i]);
  }
  return { level, leaf, leaves, depth: level.reduce((most, at) => Math.max(most, at), 0) };
}

function drawTree(tree) {
  const { level, leaf, leaves, depth } = placeTree(tree.parents);
  const gap = leaves > 1 ? Math.min(LEAF, (TALLEST - 2 * RADIUS) / (leaves - 1)) : LEAF;
  const radius = Math.min(RADIUS, Math.max(1.2, gap / 2 - 1)), edge = RADIUS + 1;
  const x = (node) => edge + level[node] * LEVEL, y = (node) => (edge + leaf[node] * gap).toFixed(1);
  const accepted = new Set(tree.accepted ?? []);
  const fate = (node) => (accepted.has(node) ? "accepted" : tree.accepted ? "rejected" : "proposed");
  const nodes = tree.parents.map((parent, i) => ({ node: i + 1, parent, fate: fate(i + 1) }));
  const lines = nodes.map(({ node, parent, fate }) => `<path class="${fate}" d="M${x(parent)} ${y(parent)}V${y(node)}H${x(node)}"/>`);
  const dots = nodes.map(({ node, fate }) => `<circle class="${fate}" cx="${x(node)}" cy="${y(node)}" r="${radius}"/>`);
  const width = Math.ceil(2 * edge + depth * LEVEL), height = Math.ceil(2 * edge + (leaves - 1) * gap);
  return `<svg class="drafts" role="img" aria-label="${formatTree(tree)}" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">${lines.join("")}<circle class="root" cx="${x(0)}" cy="${y(0)}" r="${radius}"/>${dots.join("")}</svg>`;
}

const formatTree = ({ parents, accepted }) => (accepted ? `${count(accepted.length)} of ${plural(parents.length, "draft")} accepted` : `${plural(parents.length, "draft")} in verification`);
