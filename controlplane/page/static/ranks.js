'use strict';
// The heat map of ranks, and the mesh in three dimensions. Both draw on a canvas, so that 12,288
// ranks are no trouble, and both are used by keyboard: the arrow keys move the chosen rank, and
// what is known of it stands beside the picture as text.

function canvasFor(height) {
  const canvas = h('canvas', {tabindex: 0, role: 'img'});
  canvas.style.height = height + 'px';
  return canvas;
}

// Returns a context in CSS pixels.
function contextOf(canvas) {
  const scale = window.devicePixelRatio || 1;
  const box = canvas.getBoundingClientRect();
  if (canvas.width !== Math.round(box.width * scale)) canvas.width = Math.round(box.width * scale);
  if (canvas.height !== Math.round(box.height * scale)) canvas.height = Math.round(box.height * scale);
  const context = canvas.getContext('2d');
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, box.width, box.height);
  return {context, width: box.width, height: box.height};
}

// The server tells the axes of a mesh (mesh_json.h), the one whose neighbours have the most distant
// ranks first, with names and words for people: nothing here knows an axis.

// A place is an object with a position for each axis, by name.
const rankAt = (mesh, at) => mesh.axes.reduce((rank, axis) => rank + at[axis.name] * axis.stride, 0);
const placeOf = (mesh, rank) =>
    Object.fromEntries(mesh.axes.map(axis => [axis.name, Math.floor(rank / axis.stride) % axis.size]));
const sizeOf = mesh => mesh.axes.reduce((size, axis) => size * axis.size, 1);
// "stage 1, data 2, tensor 1"
const placeText = (mesh, rank) => {
  const at = placeOf(mesh, rank);
  return mesh.axes.map(axis => `${axis.position} ${at[axis.name]}`).join(', ');
};

// The answer of /api/heat-map, with the arrays of all ranks. In the answer for a large job, each rank
// stands for the ranks after it, with which it does every pass.
function wholeMap(map) {
  if (!map.ranks) return map;
  const spread = (values, rest) => {
    const whole = new Array(sizeOf(map.mesh)).fill(rest);
    map.ranks.forEach((rank, i) => whole.fill(values[i], rank, rank + map.ranks_each));
    return whole;
  };
  const kinds = {};
  for (const [kind, values] of Object.entries(map.kinds)) kinds[kind] = spread(values);
  return {...map, kinds, known: spread(map.known, false), read: spread(map.ranks)};
}

const MEASURES = {
  slowdown: ['slowdown', '×'],
  total: ['whole step', ' ms'],
  forward: ['forward', ' ms'],
  backward: ['backward', ' ms'],
  bubble: ['waiting for other ranks', ' ms'],
  data_wait: ['waiting for data', ' ms'],
  pipeline: ['pipeline transfers', ' ms'],
  data_parallel: ['data-parallel collectives', ' ms'],
  tensor_parallel: ['tensor-parallel exchanges', ' ms'],
  optimizer: ['optimizer', ' ms'],
  progress: ['time since progress', ' s'],
  step: ['completed step', ''],
};

function heatMapView({onChoose}) {
  const select = h('select', {id: 'measure', 'aria-label': 'what the colour shows'});
  const steps =
      h('select', {id: 'heat-steps', 'aria-label': 'mean over how many steps'},
        [1, 5, 10, 20, 50].map(n => h('option', {value: n, selected: n === 5 || null}, n)));
  const note = h('span', {});
  const canvas = canvasFor(360);
  const scale = h('div', {class: 'controls'});
  const chosen = h('p', {id: 'heat-chosen', role: 'status', class: 'mono'}, ' ');
  const hint = h('p', {class: 'hint'});
  const element =
      h('div', {},
        h('div', {class: 'controls'}, h('label', {}, 'colour: ', select),
          h('label', {}, 'mean of ', steps, ' steps'), note),
        canvas, chosen, scale, hint);
  let map = null, ranks = null, rank = 0;

  const valuesOf = measure => {
    if (measure === 'progress') return ranks && ranks.ranks.progress_seconds;
    if (measure === 'step') return ranks && ranks.ranks.step;
    return map && map.kinds[measure];
  };
  const known = i => !map || ['progress', 'step'].includes(select.value) || map.known[i];
  const isOfAnother = i => map && map.read && !['progress', 'step'].includes(select.value) && known(i) &&
      map.read[i] !== i;
  const digits = value => (select.value === 'slowdown' ? value.toFixed(2) : format.number(value, 3));
  const show = value => (value === undefined ? '–' : digits(value) + MEASURES[select.value][1]);

  function geometry(width) {
    const mesh = (map || ranks).mesh;
    const [rows, ...rest] = mesh.axes;
    const columns = rows.stride;
    const left = 56, top = 18;
    const cellWidth = Math.min(96, (width - left) / columns);
    const cellHeight = Math.max(2, Math.min(38, 900 / rows.size));
    return {mesh, rows, rest, columns, left, top, cellWidth, cellHeight};
  }

  function draw() {
    if (!map && !ranks) return;
    const values = valuesOf(select.value) || [];
    const {mesh, rows, rest, columns, left, top, cellWidth, cellHeight} =
        geometry(canvas.getBoundingClientRect().width);
    canvas.style.height = top + rows.size * cellHeight + 2 + 'px';
    const {context} = contextOf(canvas);
    const shown = values.filter((_, i) => known(i));
    let low = Math.min(...shown), high = Math.max(...shown);
    if (select.value === 'slowdown') {
      low = 1;
      high = Math.max(1.1, high);
    }
    const gap = cellWidth > 6 ? 1 : 0;
    context.font = '11px ' + colorOf('mono');
    context.textBaseline = 'middle';
    for (let i = 0; i < sizeOf(mesh); ++i) {
      const [row, column] = [Math.floor(i / columns), i % columns];
      const [x, y] = [left + column * cellWidth, top + row * cellHeight];
      const share = high > low ? (values[i] - low) / (high - low) : 0;
      context.fillStyle = known(i) && values[i] !== undefined ? rampColor(share) : colorOf('faint');
      context.fillRect(x, y, cellWidth - gap, cellHeight - gap);
      if (cellWidth > 44 && cellHeight > 15 && values[i] !== undefined) {
        context.fillStyle = share > 0.55 ? '#111' : '#fff';
        context.textAlign = 'center';
        context.fillText(known(i) ? digits(values[i]) : '?', x + cellWidth / 2, y + cellHeight / 2);
      }
    }
    // Light on dark, so that it shows on every colour.
    const [cx, cy] = [left + rank % columns * cellWidth, top + Math.floor(rank / columns) * cellHeight];
    for (const [color, inset, line] of [['#000', 0, 3], ['#fff', 2, 1.5]]) {
      context.strokeStyle = color;
      context.lineWidth = line;
      context.strokeRect(
          cx + inset, cy + inset, Math.max(4, cellWidth - gap) - 2 * inset,
          Math.max(4, cellHeight - gap) - 2 * inset);
    }
    context.fillStyle = colorOf('muted');
    context.textAlign = 'right';
    const every = Math.ceil(14 / cellHeight);
    for (let row = 0; row < rows.size; row += every)
      context.fillText(`${rows.position} ${row}`, left - 8, top + (row + 0.5) * cellHeight);
    context.textAlign = 'left';
    if (rest.length) {
      const [{size, stride, position}] = rest;
      const width = cellWidth * stride;
      for (let i = 0; i < size; i += Math.ceil(60 / width)) {
        context.fillText(`${position} ${i}`, left + i * width, 8);
      }
    }
    hint.textContent = `Rows are ${rows.plural}; columns are ${
        rest.map(axis => axis.plural).join(', with their ')} side by side. ` +
        'Arrow keys move, Enter opens the rank in the mesh.';
    drawScale(low, high, shown.length);
    const nodes =
        ranks && ranks.ranks.node[rank] !== undefined ? ', ' + ranks.nodes[ranks.ranks.node[rank]] : '';
    chosen.textContent =
        `rank ${rank}: ${placeText(mesh, rank)}${nodes} – ` +
        `${MEASURES[select.value][0]} ${known(rank) ? show(values[rank]) : 'unknown'}` +
        (isOfAnother(rank) ? `, as rank ${map.read[rank]}, which is read for the ${map.ranks_each} from it on` : '');
    canvas.setAttribute(
        'aria-label',
        `heat map of ${sizeOf(mesh)} ranks: ${MEASURES[select.value][0]} from ${show(low)} to ${
            show(high)}; ` +
            chosen.textContent);
  }

  function drawScale(low, high, count) {
    if (!count) return scale.replaceChildren();
    const picture = s(
        'svg', {width: 180, height: 10, 'aria-hidden': true},
        Array.from(
            {length: 60}, (_, i) => s('rect', {x: i * 3, width: 3.2, height: 10, fill: rampColor(i / 59)})));
    scale.replaceChildren(
        h('span', {class: 'mono'}, show(low)), picture, h('span', {class: 'mono'}, show(high)));
  }

  function update(newMap, newRanks, error) {
    map = newMap;
    ranks = newRanks;
    const names = Object.keys(MEASURES).filter(name => valuesOf(name));
    const before = select.value || (map && map.kinds.slowdown ? 'slowdown' : 'total');
    if (names.join() !== Array.from(select.options, o => o.value).join()) {
      select.replaceChildren(...names.map(name => h('option', {value: name}, MEASURES[name][0])));
      select.value = names.includes(before) ? before : names[0];
    }
    const sample = map && map.ranks ? `; ${format.integer(map.ranks.length)} of ${
                                          format.integer(sizeOf(map.mesh))} ranks are read` :
                                      '';
    note.textContent =
        error || (map && map.num_steps ? `steps ${map.first_step} to ${map.last_step}${sample}` : '');
    draw();
  }

  const choose = (to, open) => {
    if (to < 0 || to >= sizeOf((map || ranks).mesh)) return;
    rank = to;
    draw();
    if (open) onChoose(rank);
  };
  const at = event => {
    const {rows, columns, left, top, cellWidth, cellHeight} = geometry(canvas.getBoundingClientRect().width);
    const [column, row] =
        [Math.floor((event.offsetX - left) / cellWidth), Math.floor((event.offsetY - top) / cellHeight)];
    return column < 0 || column >= columns || row < 0 || row >= rows.size ? -1 : row * columns + column;
  };
  canvas.addEventListener('pointermove', event => (map || ranks) && choose(at(event), false));
  canvas.addEventListener('click', event => (map || ranks) && choose(at(event), true));
  canvas.addEventListener('keydown', event => {
    if (!map && !ranks) return;
    const {columns} = geometry(canvas.getBoundingClientRect().width);
    const by = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Enter: 0}[event.key];
    if (by === undefined) return;
    event.preventDefault();
    choose(rank + by, event.key === 'Enter');
  });
  select.addEventListener('change', draw);
  return {element, update, draw, steps: () => steps.value, onSteps: f => steps.addEventListener('change', f)};
}

const STALLED_SECONDS = 5;

// The keys that move along an axis, back and forth: of the first axis, of the second, and so on.
const MOVES = [['ArrowLeft', 'ArrowRight', '← →'], ['ArrowDown', 'ArrowUp', '↓ ↑'], ['[', ']', '[ ]'], ['{', '}', '{ }']];

// How far apart ranks are drawn in one direction, which shows these axes, the outermost first: an
// inner axis lies within each step of an outer one, with a gap before the next.
function directionOf(axes) {
  const steps = {};
  let count = 1;
  for (const axis of [...axes].reverse()) {
    steps[axis.name] = count === 1 ? 1 : count + 1;
    count += (axis.size - 1) * steps[axis.name];
  }
  return {count, of: at => axes.reduce((sum, {name}) => sum + at[name] * steps[name], 0)};
}

// The first axis from left to right, the second from front to back, the third upwards, and
// so on again. An arrow goes from a rank that waits to the one that it waits for.
function meshView({onChoose}) {
  const canvas = canvasFor(460);
  const legend = h('ul', {class: 'legend'});
  const hint = h('p', {class: 'hint'});
  const element = h('div', {}, canvas, legend, hint);
  let ranks = null, rank = 0, yaw = -0.5, pitch = 0.5, spots = [];

  function project(mesh, width, height) {
    const axes = mesh.axes;
    const directions = [0, 1, 2].map(d => directionOf(axes.filter((_, i) => i % 3 === d)));
    const extent = Math.max(...directions.map(({count}) => count), 2) - 1;
    // A long axis must not squeeze the others into a line.
    const stretch = count => (count > 1 ? Math.max(0.45, (count - 1) / extent) / (count - 1) : 0);
    const scale = Math.min(width * 0.62, height * 0.85);
    const [sinYaw, cosYaw, sinPitch, cosPitch] =
        [Math.sin(yaw), Math.cos(yaw), Math.sin(pitch), Math.cos(pitch)];
    return i => {
      const at = placeOf(mesh, i);
      const [x, y, z] = directions.map(({count, of}) => (of(at) - (count - 1) / 2) * stretch(count));
      const depth = x * sinYaw + y * cosYaw;
      return [
        width / 2 + (x * cosYaw - y * sinYaw) * scale, height / 2 - (z * cosPitch + depth * sinPitch) * scale,
        depth * cosPitch - z * sinPitch
      ];
    };
  }

  function arrow(context, from, to, room) {
    const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
    const length = Math.hypot(dx, dy) || 1;
    const [ux, uy] = [dx / length, dy / length];
    const [tx, ty] = [to[0] - ux * room, to[1] - uy * room];
    context.beginPath();
    context.moveTo(from[0] + ux * room, from[1] + uy * room);
    context.lineTo(tx, ty);
    context.moveTo(tx - ux * 7 - uy * 3.5, ty - uy * 7 + ux * 3.5);
    context.lineTo(tx, ty);
    context.lineTo(tx - ux * 7 + uy * 3.5, ty - uy * 7 - ux * 3.5);
    context.stroke();
  }

  function draw() {
    if (!ranks) return;
    const {context, width, height} = contextOf(canvas);
    const {mesh} = ranks;
    const count = sizeOf(mesh);
    const spot = project(mesh, width, height);
    spots = Array.from({length: count}, (_, i) => spot(i));
    const size = Math.max(1.5, Math.min(11, 150 / Math.sqrt(count)));
    const waiting = new Set(ranks.waits.map(pair => pair[0]));
    const stalled = i => ranks.ranks.progress_seconds[i] > STALLED_SECONDS;
    context.lineWidth = 1;
    context.strokeStyle = colorOf('line');
    if (count <= 2048) {
      context.beginPath();
      for (let i = 0; i < count; ++i) {
        const at = placeOf(mesh, i);
        for (const {name, size, stride} of mesh.axes) {
          if (at[name] + 1 >= size) continue;
          const to = spots[i + stride];
          context.moveTo(spots[i][0], spots[i][1]);
          context.lineTo(to[0], to[1]);
        }
      }
      context.stroke();
    }
    context.strokeStyle = colorOf('alert');
    context.lineWidth = 1.5;
    for (const [from, to] of ranks.waits) {
      if (spots[from] && spots[to]) arrow(context, spots[from], spots[to], size + 1);
    }
    const order = spots.map((_, i) => i).sort((a, b) => spots[b][2] - spots[a][2]);
    for (const i of order) {
      const [x, y] = spots[i];
      context.beginPath();
      context.arc(x, y, size, 0, 7);
      context.fillStyle = waiting.has(i) ? colorOf('paper') : colorOf('forward');
      context.strokeStyle = waiting.has(i) ? colorOf('alert') : colorOf('forward');
      context.lineWidth = 1.5;
      context.fill();
      context.stroke();
      if (stalled(i)) {
        context.strokeStyle = colorOf('ink');
        context.beginPath();
        context.moveTo(x - size, y - size);
        context.lineTo(x + size, y + size);
        context.moveTo(x - size, y + size);
        context.lineTo(x + size, y - size);
        context.stroke();
      }
      if (count <= 64) {
        context.fillStyle = colorOf('muted');
        context.font = '11px ' + colorOf('mono');
        context.fillText(i, x + size + 3, y - size);
      }
    }
    if (spots[rank]) {
      context.strokeStyle = colorOf('ink');
      context.lineWidth = 2;
      context.beginPath();
      context.arc(spots[rank][0], spots[rank][1], size + 3.5, 0, 7);
      context.stroke();
    }
    context.fillStyle = colorOf('ink');
    context.font = '12px ' + colorOf('mono');
    mesh.axes.forEach((axis, i) => {
      if (axis.size < 2) return;
      const [x, y] = spots[(axis.size - 1) * axis.stride];
      context.textAlign = 'center';
      context.fillText(`${axis.position} ${axis.size - 1}`, x, i % 3 === 2 ? y - size - 8 : y + size + 14);
    });
    context.textAlign = 'left';
    const stalledCount = spots.filter((_, i) => stalled(i)).length;
    canvas.setAttribute(
        'aria-label',
        `mesh of ${count} ranks: ${mesh.axes.map(axis => `${axis.size} ${axis.plural}`).join(', ')}; ` +
            `${waiting.size} wait for others, ${
                stalledCount} without progress for ` +
            `${STALLED_SECONDS} s; rank ${rank} is chosen`);
    const moves = mesh.axes.slice(0, MOVES.length).map(({plural}, i) => `${MOVES[i][2]} along ${plural}`);
    hint.textContent = `Keys move: ${moves.join(', ')}; drag to turn.`;
    legend.replaceChildren(
        h('li', {}, '● works'), h('li', {}, `○ waits for another rank (${waiting.size})`),
        h('li', {}, `✕ no progress for ${STALLED_SECONDS} s (${stalledCount})`),
        h('li', {}, '→ from the rank that waits to the one that it waits for'));
  }

  function choose(to) {
    if (!ranks || to < 0 || to >= sizeOf(ranks.mesh)) return;
    rank = to;
    draw();
    onChoose(rank);
  }
  let drag = null;
  canvas.addEventListener('pointerdown', event => {
    drag = {x: event.clientX, y: event.clientY, moved: false};
  });
  canvas.addEventListener('pointermove', event => {
    if (!drag || !(event.buttons & 1)) return;
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    if (Math.abs(dx) + Math.abs(dy) < 3 && !drag.moved) return;
    yaw += dx / 200;
    pitch = Math.max(-1.4, Math.min(1.4, pitch + dy / 200));
    drag = {x: event.clientX, y: event.clientY, moved: true};
    draw();
  });
  canvas.addEventListener('click', event => {
    if (drag && drag.moved) return;
    let best = -1, distance = 400;
    spots.forEach(([x, y], i) => {
      const far = (x - event.offsetX) ** 2 + (y - event.offsetY) ** 2;
      if (far < distance) [best, distance] = [i, far];
    });
    choose(best);
  });
  canvas.addEventListener('keydown', event => {
    const index = MOVES.findIndex(keys => keys.slice(0, 2).includes(event.key));
    if (index < 0 || !ranks || index >= ranks.mesh.axes.length) return;
    event.preventDefault();
    const {name, size} = ranks.mesh.axes[index];
    const at = placeOf(ranks.mesh, rank);
    at[name] = (at[name] + (event.key === MOVES[index][1] ? 1 : size - 1)) % size;
    choose(rankAt(ranks.mesh, at));
  });
  return {
    element,
    draw,
    choose,
    update(newRanks) {
      ranks = newRanks;
      draw();
    },
    rank: () => rank,
    set(to) { rank = to; }
  };
}

// What is known of one rank. `open`: shows another rank.
function rankPanel(details, open) {
  const link = to => h('button', {class: 'link', onclick: () => open(to)}, String(to));
  const list = group => {
    const links = group.ranks.flatMap((rank, i) => (i ? [', ', link(rank)] : [link(rank)]));
    return group.total ?
        h('span', {}, links,
          group.total > group.ranks.length ? ` and ${group.total - group.ranks.length} more` : '') :
                                             'none';
  };
  const flowOf = name => {
    const {flow} = details.mesh.axes.find(axis => axis.name === name);
    return flow ? ` (${flow})` : '';
  };
  const rows = [
    ['machine', details.node],
    ['position', placeText(details.mesh, details.rank)],
    ['phase', details.phase],
    ['step', format.integer(details.step)],
    ['does now', details.doing || '–'],
    ['with', list(details.with)],
    ['waits for', list(details.waits_for)],
    ['progress', format.duration(details.progress_seconds) + ' ago'],
    ['sign of life', format.duration(details.alive_seconds) + ' ago'],
    [
      'device',
      `${details.device || '–'}${
          details.device_used_bytes ? ', ' + format.bytes(details.device_used_bytes) : ''}`
    ],
    ['process', details.pid || '–'],
    ['last error', details.last_error || 'none'],
  ];
  if (details.recent) rows.push(['recently', details.recent]);
  return h(
      'div', {id: 'rank-panel'}, h('h3', {}, `rank ${details.rank}`),
      h('dl', {}, rows.flatMap(([name, value]) => [h('dt', {}, name), h('dd', {}, value)])),
      h('h2', {}, 'neighbours'),
      h('dl', {},
        details.neighbours.flatMap(
            n =>
                [h('dt', {}, n.axis),
                 h('dd', {}, n.previous === n.next ? '' : [link(n.previous), ' · '], link(n.next),
                   h('span', {class: 'hint'}, flowOf(n.axis)))])));
}

// The calls of communicators in which a rank is now, and the newest ones that it left. `open`: shows another rank.
function exchangesView(exchanges, open) {
  const link = to => (to < 0 ? 'all' : h('button', {class: 'link', onclick: () => open(to)}, String(to)));
  const item = (state, words) =>
      h('li', {},
        h('b', {}, state.operation), ` in ${state.group}, number ${format.integer(state.sequence)}, with `,
        link(state.peer), h('br'), h('span', {class: 'hint'}, words));
  const flow = (done, all) => `${format.bytes(done) === '–' ? '0 B' : format.bytes(done)} of ${format.bytes(all)}`;
  const running = state => {
    if (state.send_bytes + state.receive_bytes === 0)
      return `${state.instruction}; ${state.state}; waits for the others`;
    return `${state.instruction}; ${state.state}: sent ${flow(state.transmitted_bytes, state.send_bytes)}, taken ` +
        `${flow(state.delivered_bytes, state.send_bytes)}, received ` +
        `${flow(state.received_bytes, state.receive_bytes)}; no byte for ${format.duration(state.quiet_seconds)}`;
  };
  const ended = state => `${state.instruction}; ${state.ok ? '✓' : '✕ failed'} after ${format.duration(state.seconds)}`;
  const newest = exchanges.completed.slice(0, 5);
  const more = exchanges.num_running - exchanges.running.length;
  return h(
      'div', {id: 'exchanges'},
      exchanges.running.length ? h('ul', {}, exchanges.running.map(state => item(state, running(state)))) :
                                 h('p', {class: 'hint'}, 'It is in none now.'),
      more > 0 ? h('p', {class: 'hint'}, `and ${more} more`) : null,
      newest.length ? h('details', {}, h('summary', {class: 'hint'}, 'the newest that ended'),
                        h('ul', {}, newest.map(state => item(state, ended(state))))) :
                      null);
}
