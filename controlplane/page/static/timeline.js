'use strict';
// The timeline of a step: a band for each rank, with its passes in the wide row and its other
// streams in thin rows below. Wheel or + and - zoom, drag moves, the arrow keys walk through the
// instructions. The chosen instruction shows arrows from what it depends on and to what needs it.

function timelineView() {
  const COMPUTE = 18, THIN = 6, GAP = 10, LEFT = 84, TOP = 22;
  const canvas = canvasFor(300);
  const detail =
      h('div', {id: 'timeline-detail', role: 'status'}, h('p', {class: 'hint'}, 'Choose an instruction.'));
  const legend =
      h('ul', {class: 'legend'},
        ['forward', 'backward', 'weights', 'optimizer', 'send', 'receive', 'collective', 'load', 'wait'].map(
            name => h(
                'li', {},
                s('svg', {width: 11, height: 11}, s('rect', {width: 11, height: 11, fill: `var(--${name})`})),
                {weights: 'weight gradients', load: 'load the batch', wait: 'waits for other ranks'}[name] ||
                    name)));
  const title = h('p', {class: 'muted', id: 'timeline-title'}, ' ');
  const element = h(
      'div', {}, title, canvas, legend, detail,
      h('p', {class: 'hint'},
        'Wheel or + and − zoom, drag moves, 0 shows the whole step; ← → next instruction of the stream, ' +
            '↑ ↓ other streams and ranks.'));
  let data = null, lanes = [], from = 0, to = 1, end = 1, chosen = null;

  // Lane: a stream of a rank, with the indices of its spans in time order.
  function layOut() {
    lanes = [];
    let y = TOP;
    data.rows.forEach((row, r) => {
      const byStream = new Map();
      row.spans.forEach((span, i) => {
        if (span[5] === 2) return;
        const wide = ['forward', 'backward', 'weights'].includes(span[1]);
        const key = wide ? -1 : span[0];
        if (!byStream.has(key)) byStream.set(key, []);
        byStream.get(key).push(i);
      });
      const keys = [...byStream.keys()].sort((a, b) => a - b);
      keys.forEach((key, k) => {
        const height = key === -1 ? COMPUTE : THIN;
        const spans = byStream.get(key).sort((a, b) => row.spans[a][2] - row.spans[b][2]);
        lanes.push({row: r, key, y, height, spans, first: k === 0});
        y += height + 1;
      });
      y += GAP;
    });
    return y;
  }

  const xOf = (time, width) => LEFT + (time - from) / (to - from) * (width - LEFT - 8);
  const laneOf = (r, i) => lanes.find(lane => lane.row === r && lane.spans.includes(i));

  function draw() {
    if (!data) return;
    const {context, width, height} = contextOf(canvas);
    context.font = '11px ' + colorOf('mono');
    context.textBaseline = 'middle';
    context.fillStyle = colorOf('muted');
    context.strokeStyle = colorOf('line');
    for (const tick of ticksOf(from, to, 8)) {
      const x = xOf(tick, width);
      context.beginPath();
      context.moveTo(x, TOP - 4);
      context.lineTo(x, height);
      context.stroke();
      context.textAlign = 'center';
      context.fillText(format.number(tick / 1000, 4) + ' ms', x, 8);
    }
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT, height);
    context.clip();
    for (const lane of lanes) {
      for (const i of lane.spans) {
        const span = data.rows[lane.row].spans[i];
        const [, kind, begin, finish, waited, state, name] = span;
        if (finish < from || begin - waited > to) continue;
        const x = xOf(begin, width);
        const size = Math.max(1, xOf(finish, width) - x - (lane.key === -1 ? 0.5 : 0));
        if (waited > 0) {
          const wx = xOf(begin - waited, width);
          context.fillStyle = colorOf('wait');
          context.fillRect(wx, lane.y + lane.height / 2 - 1, x - wx, 2);
        }
        context.fillStyle = colorOf(kind === 'other' ? 'load' : kind);
        context.fillRect(x, lane.y, size, lane.height);
        if (state === 1) {
          context.strokeStyle = colorOf('alert');
          context.lineWidth = 2;
          context.strokeRect(x, lane.y, size, lane.height);
        }
        // Narrow passes have the number of their micro-batch alone.
        const label = size > 56 ? name : (/\.m(\d+)/.exec(name) || [])[1];
        if (lane.key === -1 && label && size > 4 + 7 * label.length) {
          context.fillStyle = inkOn(colorOf(kind));
          context.textAlign = 'left';
          context.save();
          context.beginPath();
          context.rect(x, lane.y, size, lane.height);
          context.clip();
          context.fillText(label, x + 3, lane.y + lane.height / 2 + 0.5);
          context.restore();
        }
      }
    }
    if (chosen) drawChosen(context, width);
    context.restore();
    context.fillStyle = colorOf('ink');
    context.textAlign = 'right';
    for (const lane of lanes) {
      if (!lane.first) continue;
      const row = data.rows[lane.row];
      context.fillText(`rank ${row.rank}`, LEFT - 10, lane.y + COMPUTE / 2);
    }
  }

  // The collective of the chosen instruction: its members, of which the first came last; or none.
  const membersOf = ([r, i]) =>
      data.collectives.find(members => members.some(([r1, i1]) => r1 === r && i1 === i)) || [];

  // Links of the chosen instruction, as [row, index] pairs.
  function linksOf([r, i]) {
    const links = data.rows[r].spans[i][7].map(d => [[r, d], [r, i]]);
    data.rows[r].spans.forEach((span, j) => {
      if (span[7].includes(i)) links.push([[r, i], [r, j]]);
    });
    for (const [r1, i1, r2, i2] of data.messages) {
      if ((r1 === r && i1 === i) || (r2 === r && i2 === i)) links.push([[r1, i1], [r2, i2]]);
    }
    return links;
  }

  // From the member of a collective that came last to those that waited for it.
  function arrowsOf(at) {
    const [last, ...others] = membersOf(at);
    if (!last) return [];
    return others.filter(other => [last, other].some(([r, i]) => r === at[0] && i === at[1]))
        .map(other => [last, other]);
  }

  function drawArrow(context, x1, y1, x2, y2) {
    const bend = Math.max(12, Math.abs(x2 - x1) / 3);
    context.beginPath();
    context.moveTo(x1, y1);
    context.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2, y2);
    context.stroke();
    context.fillStyle = colorOf('ink');
    context.beginPath();
    context.moveTo(x2, y2);
    context.lineTo(x2 - 6, y2 - 3);
    context.lineTo(x2 - 6, y2 + 3);
    context.fill();
  }

  function drawChosen(context, width) {
    const [r, i] = chosen;
    const lane = laneOf(r, i);
    if (!lane) return;
    const span = data.rows[r].spans[i];
    context.strokeStyle = colorOf('ink');
    context.lineWidth = 1.25;
    // A dependency begins after another has ended; members of a collective begin together.
    for (const [links, side] of [[linksOf(chosen), 3], [arrowsOf(chosen), 2]]) {
      for (const [[r1, i1], [r2, i2]] of links) {
        const [a, b] = [laneOf(r1, i1), laneOf(r2, i2)];
        if (!a || !b) continue;
        drawArrow(
            context, xOf(data.rows[r1].spans[i1][side], width), a.y + a.height / 2,
            xOf(data.rows[r2].spans[i2][2], width), b.y + b.height / 2);
      }
    }
    const x = xOf(span[2], width);
    context.lineWidth = 2;
    context.strokeRect(x, lane.y - 1, Math.max(3, xOf(span[3], width) - x), lane.height + 2);
  }

  function choose(next) {
    chosen = next;
    const [r, i] = chosen;
    const row = data.rows[r], span = row.spans[i];
    const links = linksOf(chosen);
    const name = ([r1, i1]) => (r1 === r ? '' : `rank ${data.rows[r1].rank} `) + data.rows[r1].spans[i1][6];
    const names = (own, other) => links.filter(link => link[own][0] === r && link[own][1] === i)
                                      .map(link => name(link[other]))
                                      .join(', ') ||
        'nothing';
    const rows = [
      ['instruction', `${span[6]}, ${span[1]}, stream ${data.streams[span[0]]}`],
      ['rank', row.name.startsWith('rank') ? row.name : `rank ${row.rank}: ${row.name}`],
      [
        'time',
        `${format.number(span[2] / 1000, 5)} to ${format.number(span[3] / 1000, 5)} ms: ${
            format.number((span[3] - span[2]) / 1000, 4)} ms` +
            (span[5] === 1 ? ', still running' : '')
      ],
      ['waited before', `${format.number(span[4] / 1000, 4)} ms`], ['needs', names(1, 0)],
      ['is needed by', names(0, 1)]
    ];
    const members = membersOf(chosen);
    if (members.length) {
      const ranks = members.map(([r1]) => data.rows[r1].rank);
      rows.push([
        'runs together with',
        `rank ${ranks.filter(rank => rank !== row.rank).sort((a, b) => a - b).join(', ')}; rank ${
            ranks[0]} came last`
      ]);
    }
    detail.replaceChildren(
        h('dl', {}, rows.flatMap(([key, value]) => [h('dt', {}, key), h('dd', {class: 'mono'}, value)])));
    draw();
  }

  function zoom(factor, at) {
    const middle = at === undefined ? (from + to) / 2 : at;
    from = Math.max(0, middle - (middle - from) * factor);
    to = Math.min(end, Math.max(from + 1, middle + (to - middle) * factor));
    draw();
  }
  function pan(by) {
    const size = to - from;
    from = Math.max(0, Math.min(end - size, from + by));
    to = from + size;
    draw();
  }

  const timeAt = event =>
      from + (event.offsetX - LEFT) / (canvas.getBoundingClientRect().width - LEFT - 8) * (to - from);
  canvas.addEventListener('wheel', event => {
    if (!data) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event));
  }, {passive: false});
  let drag = null;
  canvas.addEventListener('pointerdown', event => {
    drag = {x: event.clientX, moved: false};
  });
  canvas.addEventListener('pointermove', event => {
    if (!data || !drag || !(event.buttons & 1)) return;
    const dx = event.clientX - drag.x;
    if (Math.abs(dx) < 3 && !drag.moved) return;
    pan(-dx / (canvas.getBoundingClientRect().width - LEFT) * (to - from));
    drag = {x: event.clientX, moved: true};
  });
  canvas.addEventListener('click', event => {
    if (!data || (drag && drag.moved)) return;
    const time = timeAt(event);
    const lane = lanes.find(l => event.offsetY >= l.y - 1 && event.offsetY <= l.y + l.height + 1);
    if (!lane) return;
    const near = i => {
      const span = data.rows[lane.row].spans[i];
      return time < span[2] ? span[2] - time : time > span[3] ? time - span[3] : 0;
    };
    choose([lane.row, lane.spans.reduce((best, i) => (near(i) < near(best) ? i : best))]);
  });
  canvas.addEventListener('keydown', event => {
    if (!data || !lanes.length) return;
    const lane = chosen && laneOf(...chosen);
    const moves = {
      '+': () => zoom(0.7),
      '=': () => zoom(0.7),
      '-': () => zoom(1.4),
      '0': () => {
        [from, to] = [0, end];
        draw();
      },
      ArrowRight: () => step(1),
      ArrowLeft: () => step(-1),
      ArrowDown: () => cross(1),
      ArrowUp: () => cross(-1),
    };
    const step = by => {
      if (!lane) return choose([lanes[0].row, lanes[0].spans[0]]);
      const at = lane.spans.indexOf(chosen[1]) + by;
      if (at >= 0 && at < lane.spans.length) choose([lane.row, lane.spans[at]]);
    };
    const cross = by => {
      if (!lane) return step(0);
      const next = lanes[lanes.indexOf(lane) + by];
      if (!next) return;
      const time = data.rows[lane.row].spans[chosen[1]][2];
      const far = i => Math.abs(data.rows[next.row].spans[i][2] - time);
      choose([next.row, next.spans.reduce((best, i) => (far(i) < far(best) ? i : best))]);
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
    if (chosen && event.key.startsWith('Arrow')) {
      const span = data.rows[chosen[0]].spans[chosen[1]];
      if (span[2] < from || span[3] > to) pan((span[2] + span[3]) / 2 - (from + to) / 2);
    }
  });

  return {
    element,
    draw,
    update(newData) {
      data = newData;
      chosen = null;
      const bottom = layOut();
      canvas.style.height = bottom + 'px';
      end = Math.max(
          1, ...data.rows.flatMap(row => row.spans.filter(span => span[5] !== 2).map(span => span[3])));
      [from, to] = [0, end];
      title.textContent =
          `step ${data.step}${data.whole ? '' : ', still running'}: ${format.number(end / 1000, 4)} ms` +
          (data.ranks_left_out ? `; ${data.ranks_left_out} further ranks are not shown` : '') +
          (data.other_ranks_known ? '' : '; waits for ranks that are not shown are unknown');
      const count = data.rows.reduce((sum, row) => sum + row.spans.length, 0);
      canvas.setAttribute(
          'aria-label', `timeline of step ${data.step}: ${data.rows.length} ranks, ${count} instructions`);
      detail.replaceChildren(
          h('p', {class: 'hint'}, 'Choose an instruction to see what it needs and what needs it.'));
      draw();
    },
  };
}
