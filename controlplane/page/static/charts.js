'use strict';
// Elements, numbers and charts. Every text goes in as a text node, so that names, messages and log
// lines of any content stay text.

// h('a', {href: '#/x', class: 'y', onclick: f}, 'text', element)
function h(tag, attributes, ...children) { return fill(document.createElement(tag), attributes, children); }
function s(tag, attributes, ...children) {
  return fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);
}
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on'))
      element.addEventListener(name.slice(2), value);
    else
      element.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

const format = {
  number(value, digits = 4) {
    if (value === null || value === undefined || !isFinite(value)) return '–';
    if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3)) return value.toExponential(2);
    const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value) || 1)));
    return value.toLocaleString('en', {maximumFractionDigits: Math.min(places, digits)});
  },
  // For the ticks of an axis.
  short(value) {
    const size = Math.abs(value);
    if (size >= 1e9) return +(value / 1e9).toPrecision(3) + 'G';
    if (size >= 1e6) return +(value / 1e6).toPrecision(3) + 'M';
    if (size >= 1e4) return +(value / 1e3).toPrecision(3) + 'k';
    return String(+value.toPrecision(4));
  },
  integer: value => (value === null || value === undefined ? '–' : Math.round(value).toLocaleString('en')),
  percent: value => (value === null || value === undefined ? '–' : (100 * value).toFixed(1) + ' %'),
  duration(seconds) {
    if (seconds === null || seconds === undefined || seconds < 0 || !isFinite(seconds)) return '–';
    if (seconds < 1) return Math.round(seconds * 1000) + ' ms';
    if (seconds < 60) return seconds.toFixed(1) + ' s';
    if (seconds < 3600) return Math.floor(seconds / 60) + ' min ' + Math.round(seconds % 60) + ' s';
    if (seconds < 86400) return Math.floor(seconds / 3600) + ' h ' + Math.round(seconds % 3600 / 60) + ' min';
    return Math.floor(seconds / 86400) + ' d ' + Math.round(seconds % 86400 / 3600) + ' h';
  },
  bytes(value) {
    if (!value) return '–';
    const unit = Math.min(4, Math.floor(Math.log(value) / Math.log(1024)));
    return (value / 1024 ** unit).toFixed(unit ? 1 : 0) + [' B', ' KiB', ' MiB', ' GiB', ' TiB'][unit];
  },
  time: seconds => (seconds ? new Date(seconds * 1000).toLocaleString() : '–'),
};

function colorOf(name) {
  return getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
}

// Black or white, whichever is easier to read on the color "#rrggbb".
function inkOn(color) {
  const [r, g, b] = [1, 3, 5].map(at => parseInt(color.slice(at, at + 2), 16));
  return 0.3 * r + 0.6 * g + 0.1 * b > 120 ? '#111' : '#fff';
}

// Dark blue to yellow: brightness alone tells the order.
const RAMP = [
  [0, 34, 78], [27, 57, 110], [64, 77, 107], [93, 97, 109], [123, 118, 117], [155, 140, 116], [189, 165, 106],
  [222, 193, 86], [254, 232, 56]
];
function rampColor(share) {
  const at = Math.max(0, Math.min(1, share || 0)) * (RAMP.length - 1);
  const low = Math.min(RAMP.length - 2, Math.floor(at));
  const mix = RAMP[low].map((value, i) => Math.round(value + (RAMP[low + 1][i] - value) * (at - low)));
  return `rgb(${mix.join(',')})`;
}

// Round numbers that cover [low, high].
function ticksOf(low, high, count) {
  const span = high - low || Math.abs(high) || 1;
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(f => f * power).find(size => size >= rough);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-6; tick += step) ticks.push(tick);
  return ticks;
}

const SMOOTHED_MIN = 150;

// The legend of dygraphs sets styles in a way that the content policy forbids; charts have titles.
Dygraph.PLUGINS = Dygraph.PLUGINS.filter(plugin => plugin !== Dygraph.Plugins.Legend);

// Medians around each point, over `reach` points on both sides: a spike does not widen.
function mediansOf(points, reach) {
  return points.map(([x], i) => {
    const near = points.slice(Math.max(0, i - reach), i + reach + 1).map(point => point[1]);
    return [x, near.sort((a, b) => a - b)[near.length >> 1]];
  });
}

// A curve over steps, drawn by dygraphs: drag zooms, a double click ends it. The arrow keys walk
// along the curve. `restarts`: steps with which an attempt began. `place`: says an x in words.
// `second`: {name, ys}, another curve with points at some of the steps.
// `tick`, `tickX`: the same on the axes. dygraphs makes its labels out of HTML, so it gets numbers
// alone: the ticks' words come from numbers, and titles stay outside of it.
function lineChart({
  title,
  xs,
  ys,
  restarts = [],
  show,
  place = step => `step ${format.integer(step)}`,
  tick: showTick = format.short,
  tickX = format.integer,
  fromZero,
  isSmoothed = true,
  second = null
}) {
  const points = xs.map((x, i) => [x, ys[i]]).filter(([, y]) => y !== null && isFinite(y));
  const others = second ? xs.map((x, i) => [x, second.ys[i]]).filter(([, y]) => y !== null && isFinite(y)) : [];
  const newest = (points.length ? show(points[points.length - 1][1]) : '–') +
      (others.length ? `, ${second.name} ${show(others[others.length - 1][1])}` : '');
  const value = h('span', {}, newest);
  const chart = h('section', {class: 'chart'}, h('h3', {}, title, value));
  if (points.length < 2) {
    chart.append(h('p', {class: 'empty'}, points.length ? 'One value so far.' : 'Nothing is known yet.'));
    return chart;
  }
  const [x0, x1] = [points[0][0], points[points.length - 1][0]];
  const begun = restarts.filter(step => step > x0);
  const plot = h('div', {
    class: 'plot',
    role: 'img',
    tabindex: 0,
    'aria-label': `${title}: ${newest} at ${place(x1)}, from ${show(points[0][1])} at ${place(x0)}` +
        (begun.length ? `; a new attempt began with step ${begun.join(', ')}` : '')
  });
  const smooth = isSmoothed && points.length > SMOOTHED_MIN ? mediansOf(points, Math.ceil(points.length / 60)) : null;
  let graph = null, at = points.length - 1;
  const say = index => {
    at = Math.max(0, Math.min(points.length - 1, index));
    const other = others.filter(([x]) => x <= points[at][0]).at(-1);
    value.textContent = `${place(points[at][0])}: ${show(points[at][1])}` +
        (other ? `, ${second.name} ${show(other[1])}` : '');
  };
  const clear = () => {
    value.textContent = newest;
  };
  const accent = colorOf('accent');
  const hasOther = others.length > 0;
  const labels = ['x', 'value'].concat(smooth ? ['median'] : [], hasOther ? ['second'] : []);
  const colors = (smooth ? [accent + '73', accent] : [accent]).concat(hasOther ? [colorOf('second')] : []);
  const otherAt = new Map(others);
  const rows = points.map(([x, y], i) => [x, y].concat(smooth ? [smooth[i][1]] : [],
      hasOther ? [otherAt.has(x) ? otherAt.get(x) : null] : []));
  const options = {
    labels,
    colors,
    connectSeparatedPoints: true,
    series: {
      value: {strokeWidth: smooth ? 1 : 1.5},
      median: {strokeWidth: 1.5},
      second: {strokeWidth: 2, drawPoints: true, pointSize: 3}
    },
    valueRange: rangeOf(points.concat(others), fromZero),
    axes: {
      x: {axisLabelFormatter: x => (Number.isInteger(x) ? tickX(x) : ''), pixelsPerLabel: 50, drawGrid: false},
      y: {axisLabelFormatter: y => showTick(y), pixelsPerLabel: 34, axisLabelWidth: 46}
    },
    axisLabelFontSize: 11,
    axisLineColor: colorOf('line'),
    gridLineColor: colorOf('line'),
    highlightCallback: (event, x, shown, row) => say(row),
    unhighlightCallback: clear,
    underlayCallback: (context, area, drawn) => markRestarts(context, area, drawn, begun)
  };
  plot.addEventListener('blur', () => {
    if (graph) graph.clearSelection();
    clear();
  });
  plot.addEventListener('keydown', event => {
    const by = {
      ArrowLeft: -1,
      ArrowRight: 1,
      PageDown: 25,
      PageUp: -25,
      Home: -points.length,
      End: points.length
    }[event.key];
    if (!by || !graph) return;
    event.preventDefault();
    say(at + by);
    graph.setSelection(at);
  });
  // It is drawn once it has a size, and given up when it leaves the page.
  const size = new ResizeObserver(() => {
    if (plot.isConnected && !graph) {
      graph = new Dygraph(plot, rows, options);
    } else if (plot.isConnected) {
      graph.resize();
    } else {
      size.disconnect();
      if (graph) graph.destroy();
    }
  });
  size.observe(plot);
  chart.append(plot);
  return chart;
}

// The values that a chart shows. A single spike must not flatten all others.
function rangeOf(points, fromZero) {
  const sorted = points.map(p => p[1]).sort((a, b) => a - b);
  const most = sorted[Math.floor((sorted.length - 1) * 0.99)];
  let low = fromZero ? 0 : sorted[0], high = sorted[sorted.length - 1];
  if (high - low > 4 * (most - low) && most > low) high = most;
  if (high <= low) {
    high += Math.abs(high) * 0.05 || 1;
    low -= fromZero ? 0 : Math.abs(low) * 0.05;
  }
  return [low, high + (high - low) * 0.03];
}

// A dashed line where an attempt began.
function markRestarts(context, area, graph, steps) {
  context.save();
  context.strokeStyle = colorOf('alert');
  context.setLineDash([4, 3]);
  for (const step of steps) {
    const x = Math.round(graph.toDomXCoord(step)) + 0.5;
    context.beginPath();
    context.moveTo(x, area.y);
    context.lineTo(x, area.y + area.h);
    context.stroke();
  }
  context.restore();
}

const KINDS = [
  ['compute', 'forward and backward'], ['tensor_parallel', 'tensor-parallel exchanges'],
  ['optimizer', 'optimizer'], ['pipeline', 'pipeline transfers'],
  ['data_parallel', 'data-parallel collectives'], ['data_wait', 'waiting for data'],
  ['bubble', 'waiting for other ranks']
];

const ACCOUNT = [
  ['kept', 'steps that count'], ['queue', 'queue'], ['start', 'start'], ['load', 'loading weights'],
  ['checkpoint', 'checkpoints'], ['detection', 'until a failure was noticed'],
  ['decision', 'until a new attempt'], ['recomputation', 'computing steps again'],
  ['degraded', 'slower than usual'], ['evaluation', 'evaluations']
];

// A bar of the parts of a job's time, and a table of them. `spans`: pairs [words, account].
function accountView(spans) {
  const width = 900, left = 90, row = 26;
  const known = spans.filter(([, account]) => account && account.wall > 0);
  if (!known.length) return h('p', {class: 'muted'}, 'The job has not begun.');
  const used = ACCOUNT.filter(([part]) => known.some(([, account]) => account[part] > 0));
  const picture = s('svg', {
    viewBox: `0 0 ${width} ${known.length * row + 4}`,
    width: '100%',
    role: 'img',
    'aria-label': known.map(([words, account]) => `${words}: goodput ${
                                format.percent(account.kept / account.wall)}`).join('; ') +
        '; the table below has the parts'
  });
  known.forEach(([words, account], i) => {
    let at = left;
    picture.append(s('text', {x: left - 8, y: i * row + 16, 'text-anchor': 'end'}, words));
    for (const [part, name] of used) {
      const size = account[part] / account.wall * (width - left);
      if (size <= 0) continue;
      picture.append(s(
          'rect',
          {class: 'account-' + part, x: at, y: i * row + 3, width: Math.max(0.5, size - 1), height: 18},
          s('title', {}, `${name}: ${format.percent(account[part] / account.wall)}`)));
      at += size;
    }
  });
  const cells = account => part => h(
      'td', {class: 'number'},
      account[part] > 0 ? `${format.duration(account[part])} (${format.percent(account[part] / account.wall)})` :
                          '–');
  const table =
      h('table', {id: 'account'},
        h('thead', {},
          h('tr', {}, h('th', {}, ''),
            known.map(([words, account]) =>
                          h('th', {class: 'number'}, `${words}, ${format.duration(account.wall)}`)))),
        h('tbody', {},
          used.map(([part, name]) =>
                       h('tr', {},
                         h('td', {},
                           s('svg', {width: 11, height: 11, class: 'key'},
                             s('rect', {class: 'account-' + part, width: 11, height: 11})),
                           name),
                         known.map(([, account]) => cells(account)(part))))));
  return h('div', {}, picture, table);
}

// Stacked bars: where the step of each stage went, means over its ranks. `map`: of /api/heat-map.
function stageBars(map) {
  const {size: numStages, stride: ranksOfStage, position} = map.mesh.axes[0];
  const stages = [];
  for (let stage = 0; stage < numStages; ++stage) {
    const mean = {};
    for (const [kind] of KINDS) {
      const values = map.kinds[kind]
                         .slice(stage * ranksOfStage, (stage + 1) * ranksOfStage)
                         .filter((_, i) => map.known[stage * ranksOfStage + i]);
      mean[kind] = values.reduce((a, b) => a + b, 0) / (values.length || 1);
    }
    stages.push(mean);
  }
  const total = mean => KINDS.reduce((sum, [kind]) => sum + mean[kind], 0);
  const longest = Math.max(...stages.map(total)) || 1;
  const width = 900, left = 70, row = 26, right = 90;
  const picture = s('svg', {
    viewBox: `0 0 ${width} ${stages.length * row + 4}`,
    width: '100%',
    role: 'img',
    'aria-label': `where the time of a mean step of each ${position} went; the table below has the numbers`
  });
  stages.forEach((mean, stage) => {
    let at = left;
    picture.append(s('text', {x: left - 8, y: stage * row + 16, 'text-anchor': 'end'}, `${position} ${stage}`));
    for (const [kind, words] of KINDS) {
      const size = mean[kind] / longest * (width - left - right);
      if (size <= 0) continue;
      picture.append(
          s('rect',
            {class: 'segment-' + kind, x: at, y: stage * row + 3, width: Math.max(0, size - 1), height: 18},
            s('title', {}, `${words}: ${format.number(mean[kind], 3)} ms`)));
      at += size;
    }
    picture.append(s('text', {x: at + 8, y: stage * row + 16}, format.number(total(mean), 4) + ' ms'));
  });
  const used = KINDS.filter(([kind]) => stages.some(mean => mean[kind] > 0));
  const legend = h(
      'ul', {class: 'legend'},
      used.map(
          ([kind, words]) => h(
              'li', {},
              s('svg', {width: 11, height: 11}, s('rect', {class: 'segment-' + kind, width: 11, height: 11})),
              words)));
  const table =
      h('table', {id: 'stage-table'},
        h('thead', {},
          h('tr', {}, h('th', {}, 'ms'), used.map(([, words]) => h('th', {class: 'number'}, words)))),
        h('tbody', {},
          stages.map(
              (mean, stage) =>
                  h('tr', {}, h('td', {}, `${position} ${stage}`),
                    used.map(([kind]) => h('td', {class: 'number'}, format.number(mean[kind], 3)))))));
  return h('div', {}, legend, picture, h('details', {}, h('summary', {class: 'hint'}, 'the numbers'), table));
}
