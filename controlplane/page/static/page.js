'use strict';
// Routes, the list of jobs, and the views that are plain DOM. Live by server-sent events: each
// brings the list of jobs, and the view that is open then reads what else it needs.

const SIGNS = {
  PENDING: '◌',
  STARTING: '◔',
  RUNNING: '●',
  RECOVERING: '↻',
  CANCELLING: '◌',
  SUCCEEDED: '✓',
  FAILED: '✕',
  CANCELLED: '–'
};
const ENDED = ['SUCCEEDED', 'FAILED', 'CANCELLED'];
const POINTS = 1000;
const TRACE_INTERVAL_MS = 3000;

const main = document.getElementById('main');
const state = {
  jobs: [],
  total: 0,
  view: null
};

// The page's own errors are JSON, those of the server that sends its answers are plain text.
function errorOf(text) {
  try {
    return JSON.parse(text).error;
  } catch (error) {
    return text.trim();
  }
}

async function get(path, parameters) {
  const query = new URLSearchParams(parameters || {}).toString();
  const answer = await fetch(path + (query ? '?' + query : ''));
  if (answer.status === 401)
    throw new Error('the token is not valid any more: open the URL that the driver printed');
  const text = await answer.text();
  if (!answer.ok) throw new Error(errorOf(text) || 'the driver answered ' + answer.status);
  return JSON.parse(text);
}

const stateLabel = job =>
    h('span', {
      class: 'state' + (job.state === 'FAILED' || job.state === 'RECOVERING' ? ' alert' : ''),
      'data-sign': SIGNS[job.state] || '?'
    },
      job.state.toLowerCase());

// --- the side -------------------------------------------------------------------------------------

function showJobs() {
  const route = routeOf();
  const list = document.getElementById('jobs');
  const focused = document.activeElement && list.contains(document.activeElement) ?
      document.activeElement.getAttribute('href') :
      null;
  list.replaceChildren(...state.jobs.map(job => {
    const share = job.steps ? Math.min(1, job.step / job.steps) : 0;
    const bar = h('span', {});
    bar.style.width = 100 * share + '%';
    return h(
        'li', {},
        h('a', {
          href: '#/job/' + encodeURIComponent(job.id) + '/' + (route.tab || 'overview'),
          'aria-current': route.job === job.id ? 'page' : null
        },
          h('span', {class: 'id', title: job.id}, job.id),
          h('span', {class: 'note'},
            `${SIGNS[job.state] || '?'} ${job.state.toLowerCase()}, step ${format.integer(job.step)} of ${
                format.integer(job.steps)}`),
          h('span', {class: 'bar', 'aria-hidden': true}, bar)));
  }));
  if (!state.jobs.length) list.append(h('li', {class: 'note'}, h('a', {href: '#/'}, 'no job yet')));
  if (state.total > state.jobs.length)
    list.append(
        h('li', {class: 'note'}, h('a', {href: '#/'}, `and ${state.total - state.jobs.length} older`)));
  if (focused)
    for (const link of list.querySelectorAll('a'))
      if (link.getAttribute('href') === focused) link.focus();
  const machines = document.getElementById('machines-link');
  if (route.page === 'machines' || route.page === 'machine')
    machines.setAttribute('aria-current', 'page');
  else
    machines.removeAttribute('aria-current');
}

// --- a job ----------------------------------------------------------------------------------------

const TABS = [
  ['overview', 'Overview'], ['ranks', 'Ranks'], ['timeline', 'Timeline'], ['mesh', 'Mesh'], ['logs', 'Logs']
];

function jobHead() {
  const title = h('div', {class: 'title'});
  const message = h('p', {class: 'message', id: 'job-message'});
  const tabs = h('nav', {class: 'tabs', 'aria-label': 'views of the job'});
  const update = (job, tab) => {
    title.replaceChildren(
        h('h1', {id: 'job-title'}, job.id), stateLabel(job),
        h('span', {class: 'muted'},
          `${job.mesh_sizes}, ` +
              `attempt ${job.attempt}${
                  job.restarts ? `, ${job.restarts} restart${job.restarts > 1 ? 's' : ''}` : ''}`));
    message.textContent = job.message;
    if (!tabs.childElementCount) {
      tabs.append(...TABS.map(
          ([name, words]) =>
              h('a', {
                href: `#/job/${encodeURIComponent(job.id)}/${name}`,
                'aria-current': name === tab ? 'page' : null
              },
                words)));
    }
  };
  return {element: h('header', {}, title, message, tabs), update};
}

const figure = (value, words, id) => h('div', {class: 'figure', id}, h('b', {}, value), h('span', {}, words));

function timeLeft(job) {
  return job.state === 'RUNNING' && job.step_seconds ?
      format.duration((job.steps - job.step) * job.step_seconds) :
      '–';
}

function failureTable(failures) {
  if (!failures.length) return h('p', {class: 'muted', id: 'failures'}, 'None since the driver started.');
  return h(
      'table', {id: 'failures'},
      h('thead', {},
        h('tr', {},
          ['noticed', 'first cause', 'evidence', 'detected after', 'recovered after'].map(
              (words, i) => h('th', {class: i > 2 ? 'number' : null}, words)))),
      h('tbody', {},
        failures.slice().reverse().map(
            failure =>
                h('tr', {},
                  h('td', {}, failure.noticed ? format.time(failure.noticed) : 'before the driver started'),
                  h('td', {},
                    failure.rank >= 0 ? `rank ${failure.rank} on ${failure.node}` : `machine ${failure.node}`,
                    h('br'), h('span', {class: 'alert'}, failure.class),
                    h('span', {class: 'muted'},
                      `, attempt ${failure.attempt}` +
                          (failure.consequences ? `; ${failure.consequences} more failed of it` : ''))),
                  h('td', {class: 'mono'}, failure.evidence),
                  h('td', {class: 'number', title: 'since the last completed step'},
                    format.duration(failure.detection_seconds)),
                  h('td', {class: 'number', title: 'until the next attempt completed a step'},
                    failure.noticed && failure.recovery_seconds < 0 ?
                        'not yet' :
                        format.duration(failure.recovery_seconds))))));
}

const suspicionBox = suspicion =>
    h('section', {class: 'suspect', id: 'suspect'},
      h('b', {class: 'alert'}, '✕ ' + suspicion.verdict),
      h('p', {class: 'message'},
        [
          suspicion.rank >= 0 ? `rank ${suspicion.rank} on ${suspicion.node}` : suspicion.node,
          suspicion.began ? `at fault since ${format.time(suspicion.began)}` : '',
          suspicion.since ? `suspected since ${format.time(suspicion.since)}` : '',
          suspicion.action
        ].filter(words => words)
            .join('; ')),
      suspicion.evidence.length ? h('pre', {}, suspicion.evidence.join('\n')) : null);

function overview(id) {
  const head = jobHead();
  const figures = h('div', {class: 'figures', id: 'figures'});
  const charts = h('div', {class: 'charts', id: 'charts'});
  const stages = h('div', {id: 'stages'}, h('p', {class: 'muted'}, 'Reading spans …'));
  const failures = h('div', {});
  const account = h('div', {});
  const suspect = h('div', {});
  const facts = h('dl', {});
  let columns = null, lastMap = 0;

  async function readSteps(job) {
    const known = columns && columns.step.length ? columns.step[columns.step.length - 1] : 0;
    if (columns && known === job.step && columns.attempt.at(-1) === job.attempt) return false;
    // A rollback takes steps back, and many new ones make the curve too dense: both start anew.
    const more = columns && known < job.step && columns.step.length < 2 * POINTS ?
        await get('api/steps', {job: id, after: known, points: POINTS}) :
        null;
    if (!more || (columns.attempt.at(-1) !== undefined && more.attempt.at(-1) !== columns.attempt.at(-1))) {
      columns = await get('api/steps', {job: id, points: POINTS});
    } else {
      for (const name of Object.keys(columns)) columns[name].push(...more[name]);
    }
    return true;
  }

  function drawCharts() {
    if (charts.contains(document.activeElement) || charts.matches(':hover')) return;
    const restarts = columns.step.filter((step, i) => i > 0 && columns.attempt[i] !== columns.attempt[i - 1]);
    const chart = (title, name, show, fromZero, tick, second) =>
        lineChart({title, xs: columns.step, ys: columns[name], restarts, show, fromZero, tick, second});
    charts.replaceChildren(
        chart('Loss, nats per token', 'loss', v => format.number(v, 4), false, undefined,
              {name: 'held-out', ys: columns.held_out_loss}),
        chart('Tokens per second', 'tokens_per_second', v => format.integer(v), true),
        columns.mfu.some(v => v !== null) ?
            chart('MFU', 'mfu', v => format.percent(v), true, v => Math.round(100 * v) + ' %') :
            chart('Step time, seconds', 'seconds', v => format.number(v, 3), true),
        chart('Gradient norm', 'grad_norm', v => format.number(v, 3), true));
  }

  return {
    element:
        h('div', {}, head.element, suspect, figures, charts,
          h('h2', {}, 'Where the time of a step goes, by stage'), stages,
          h('h2', {}, 'Where the time of the job went'), account, h('h2', {}, 'Failures'), failures,
          h('h2', {}, 'Job'), facts),
    async update() {
      const job = await get('api/job', {job: id});
      head.update(job, 'overview');
      figures.replaceChildren(
          figure(`${format.integer(job.step)} / ${format.integer(job.steps)}`, 'step', 'figure-step'),
          figure(format.number(job.loss, 4), 'loss', 'figure-loss'),
          ...(job.held_out_loss === undefined ? [] : [
            figure(format.number(job.held_out_loss, 4), 'held-out loss', 'figure-held-out')
          ]),
          figure(format.integer(job.tokens_per_second), 'tokens per second', 'figure-rate'),
          figure(job.mfu ? format.percent(job.mfu) : '–', 'MFU', 'figure-mfu'),
          figure(format.duration(job.step_seconds), 'step time', 'figure-seconds'),
          figure(format.number(job.grad_norm, 3), 'gradient norm', 'figure-norm'),
          figure(
              ENDED.includes(job.state) ? format.duration(job.ended - (job.started || job.submitted)) :
                                          timeLeft(job),
              ENDED.includes(job.state) ? 'from first step to end' : 'left', 'figure-left'));
      suspect.replaceChildren(job.suspicion ? suspicionBox(job.suspicion) : '');
      const hour = job.last_hour && job.time && job.last_hour.wall < job.time.wall ? job.last_hour : null;
      account.replaceChildren(accountView([['in all', job.time], ['last hour', hour]]));
      failures.replaceChildren(failureTable(job.failures));
      const rows = [
        ['submitted', format.time(job.submitted)], ['ranks', format.integer(job.ranks)],
        ['learning rate', format.number(job.lr, 3)],
        [
          'peak of its machines',
          job.flops_ceiling ? format.number(job.flops_ceiling / 1e9, 4) + ' GFLOP/s' : '–'
        ]
      ];
      if (job.lowest_held_out)
        rows.push([
          'lowest held-out loss',
          `${format.number(job.lowest_held_out.loss, 4)} at step ${job.lowest_held_out.step}` +
              (job.best_checkpoint ? `; best checkpoint: step ${job.best_checkpoint.step}: ${
                                         job.best_checkpoint.directory}` : '')
        ]);
      if (job.checkpoint)
        rows.push([
          'last checkpoint',
          `step ${job.checkpoint.step}, ${format.duration(job.checkpoint.age_seconds)} ago: ${
              job.checkpoint.directory}`
        ]);
      if (job.attempt_reason) rows.push(['this attempt began by', job.attempt_reason]);
      if (job.storage_failure)
        rows.push([
          'storage',
          `cannot be written for ${format.duration(job.storage_failure.seconds)}: ${
              job.storage_failure.message}`
        ]);
      for (const warning of job.warnings) rows.push(['warning', warning]);
      facts.replaceChildren(...rows.flatMap(
          ([name, value]) =>
              [h('dt', {}, name),
               h('dd', {class: name === 'warning' || name === 'storage' ? 'alert' : null}, value)]));
      if (await readSteps(job)) drawCharts();
      if (ENDED.includes(job.state))
        return stages.replaceChildren(h('p', {class: 'muted'}, 'Spans are kept while a job runs.'));
      if (Date.now() - lastMap < TRACE_INTERVAL_MS || stages.contains(document.activeElement)) return;
      lastMap = Date.now();
      try {
        const map = wholeMap(await get('api/heat-map', {job: id, steps: 5}));
        if (!map.num_steps)
          return stages.replaceChildren(h('p', {class: 'muted'}, 'No whole step is recorded yet.'));
        const open = stages.querySelector('details[open]');
        stages.replaceChildren(stageBars(map));
        if (open) stages.querySelector('details').open = true;
      } catch (error) {
        stages.replaceChildren(h('p', {class: 'muted'}, error.message));
      }
    },
  };
}

function ranksTab(id) {
  const head = jobHead();
  const view = heatMapView({
    onChoose: rank => {
      location.hash = `#/job/${encodeURIComponent(id)}/mesh/${rank}`;
    }
  });
  let last = 0;
  const self = {
    element: h('div', {}, head.element, view.element),
    redraw: view.draw,
    async update() {
      const job = await get('api/job', {job: id});
      head.update(job, 'ranks');
      if (Date.now() - last < TRACE_INTERVAL_MS) return;
      last = Date.now();
      let map = null, note = '';
      try {
        map = wholeMap(await get('api/heat-map', {job: id, steps: view.steps()}));
      } catch (error) {
        note = error.message;
      }
      view.update(map && map.num_steps ? map : null, await get('api/ranks', {job: id}), note);
    },
  };
  view.onSteps(() => {
    last = 0;
    self.update();
  });
  return self;
}

function timelineTab(id, rank) {
  const head = jobHead();
  const view = timelineView();
  const select = h('select', {id: 'view'});
  const around = h('input', {id: 'around', type: 'number', min: 0, value: rank || 0, size: 6});
  const hold =
      h('button', {
        'aria-pressed': 'false',
        onclick: () => {
          const held = hold.getAttribute('aria-pressed') !== 'true';
          hold.setAttribute('aria-pressed', held);
        }
      },
        'hold this step');
  const note = h('span', {class: 'alert', role: 'status'});
  let last = 0, shown = null;
  async function read() {
    last = Date.now();
    try {
      const data =
          await get('api/timeline', {job: id, steps: 3, axis: select.value, rank: around.value || 0});
      note.textContent = '';
      shown = data;
      view.update(data);
    } catch (error) {
      note.textContent = error.message;
    }
  }
  select.addEventListener('change', read);
  around.addEventListener('change', read);
  return {
    element:
        h('div', {}, head.element,
          h('div', {class: 'controls'}, h('label', {}, 'show ', select),
            h('label', {}, 'around rank ', around), hold, note),
          view.element),
    redraw: view.draw,
    async update() {
      const job = await get('api/job', {job: id});
      head.update(job, 'timeline');
      if (!select.options.length) {
        select.append(...job.mesh.axes.map(
            axis => h('option', {value: axis.name}, `${axis.name}: ${axis.members}`)));
      }
      around.max = Math.max(0, job.ranks - 1);
      const held = hold.getAttribute('aria-pressed') === 'true' ||
          view.element.querySelector('canvas') === document.activeElement;
      if (shown ? !held && !ENDED.includes(job.state) && Date.now() - last > TRACE_INTERVAL_MS :
                  Date.now() - last > TRACE_INTERVAL_MS)
        await read();
    },
  };
}

function meshTab(id, rank) {
  const head = jobHead();
  const panel =
      h('aside', {class: 'panel', 'aria-live': 'polite'}, h('p', {class: 'hint'}, 'Choose a rank.'));
  let busy = false;
  async function details() {
    if (busy || panel.contains(document.activeElement)) return;
    busy = true;
    try {
      const parameters = {job: id, rank: view.rank()};
      const open = to => {
        document.activeElement.blur();
        view.choose(to);
      };
      const shown = rankPanel(await get('api/rank', parameters), open);
      let exchanges = null;
      try {
        exchanges = exchangesView(await get('api/exchanges', parameters), open);
      } catch (error) {
        exchanges = h('p', {class: 'hint', id: 'exchanges'}, error.message);
      }
      shown.append(h('h2', {}, 'exchanges with other ranks'), exchanges);
      if (!panel.contains(document.activeElement)) panel.replaceChildren(shown);
    } catch (error) {
      panel.replaceChildren(h('p', {class: 'hint'}, error.message));
    }
    busy = false;
  }
  const view = meshView({
    onChoose: to => {
      history.replaceState(null, '', `#/job/${encodeURIComponent(id)}/mesh/${to}`);
      details();
    }
  });
  view.set(rank || 0);
  return {
    element: h('div', {}, head.element, h('div', {class: 'split'}, view.element, panel)),
    redraw: view.draw,
    async update() {
      head.update(await get('api/job', {job: id}), 'mesh');
      view.update(await get('api/ranks', {job: id}));
      await details();
    },
  };
}

function logsTab(id, rank) {
  const head = jobHead();
  const which = h('input', {id: 'log-rank', type: 'number', min: 0, value: rank || 0, size: 6});
  const note = h('span', {role: 'status'});
  const text = h('pre', {id: 'log', tabindex: 0});
  async function read() {
    try {
      const log = await get('api/log', {job: id, rank: which.value || 0});
      const atEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 8;
      text.textContent = log.lines.join('\n');
      note.textContent = log.lines.length ? (log.cut ? 'the last 64 KiB' : '') : 'it wrote nothing yet';
      if (atEnd) text.scrollTop = text.scrollHeight;
    } catch (error) {
      note.textContent = error.message;
    }
  }
  which.addEventListener('change', read);
  let last = 0;
  return {
    element:
        h('div', {}, head.element,
          h('div', {class: 'controls'}, h('label', {}, 'what rank ', which, ' wrote in the newest attempt'),
            note),
          text),
    async update() {
      const job = await get('api/job', {job: id});
      head.update(job, 'logs');
      which.max = Math.max(0, job.ranks - 1);
      if (Date.now() - last < TRACE_INTERVAL_MS || !getSelection().isCollapsed) return;
      last = Date.now();
      await read();
    },
  };
}

// --- machines -------------------------------------------------------------------------------------

const rateText = exchange => exchange.bytes_per_second ? format.bytes(exchange.bytes_per_second) + '/s' : 'no rate';
const failureSign = exchange => exchange.verdict === 'failed' ? '✕ ' : '';

// "with n3: 1.1 GiB/s, at least 512.0 MiB/s expected, 1/2/2026, 3:04:05 PM"
function exchangeText(exchange) {
  const words = [rateText(exchange)];
  if (exchange.expected) words.push(`at least ${format.bytes(exchange.expected)}/s expected`);
  if (exchange.ended) words.push(format.time(exchange.ended));
  if (exchange.why) words.push(exchange.why);
  return `with ${exchange.with}: ${words.join(', ')}`;
}

// Its worst exchange with another machine, and the one with several at once.
function exchangesOf(machine) {
  const lines = machine.exchanges_with ? [h('div', {}, 'now with ' + machine.exchanges_with)] : [];
  const add = (name, exchange) => {
    if (!exchange) return;
    const sign = failureSign(exchange);
    lines.push(h('div', {class: sign ? 'alert' : null}, `${sign}${name} ${exchangeText(exchange)}`));
  };
  add(`worst of ${machine.exchanges}`, machine.worst_exchange);
  add('at once', machine.exchange_round);
  return lines;
}

function machinesPage() {
  const note = h('p', {class: 'message'});
  const table = h('div', {});
  let sort = 'node', down = false;
  const columns = [
    ['node', 'machine'], ['pool', 'pool'], ['condition', 'condition'], ['verdict', 'suspicion'],
    ['slots', 'slots used', true],
    ['jobs', 'jobs', true], ['heartbeat_seconds', 'last report', true], ['cores', 'cores', true],
    ['memory_bytes', 'memory', true], ['exchange_rate', 'exchange', true]
  ];
  const condition = m =>
      (!m.alive                     ? '✕ lost' :
           m.pool === 'quarantined' ? '✕ quarantined' :
           m.evicted                ? '– evicted' :
           m.draining               ? '– draining' :
                                      '✓ well');
  let machines = [];
  function draw() {
    const rows = machines.slice().sort(
        (a, b) => (a[sort] > b[sort]     ? 1 :
                       a[sort] < b[sort] ? -1 :
                                           0) *
            (down ? -1 : 1));
    table.replaceChildren(h(
        'table', {id: 'machines'},
        h('thead', {},
          h('tr', {},
            columns.map(
                ([name, words, number]) =>
                    h('th', {
                      class: number ? 'number' : null,
                      'aria-sort': sort === name ? (down ? 'descending' : 'ascending') : null
                    },
                      h('button', {
                        class: 'link',
                        onclick: () => {
                          down = sort === name && !down;
                          sort = name;
                          draw();
                          table.querySelector(`button[data-column=${name}]`).focus();
                        },
                        'data-column': name
                      },
                        words + (sort === name ? (down ? ' ↓' : ' ↑') : '')))))),
        h('tbody', {},
          rows.flatMap(m => {
            const exchanges = exchangesOf(m);
            const worst = m.worst_exchange;
            const row =
                h('tr', {class: exchanges.length ? 'goes-on' : null},
                  h('td', {class: 'mono'},
                    h('a', {href: '#/machine/' + encodeURIComponent(m.node)}, m.node)),
                  h('td', {class: 'pool'}, m.pool),
                  h('td', {class: m.condition[0] === '✕' ? 'alert' : null}, m.condition,
                    m.why ? h('span', {class: 'muted'}, ' ' + m.why) : null),
                  h('td', {},
                    m.suspect ?
                        [
                          h('span', {class: 'alert'}, '✕ ' + m.suspect.verdict), h('br'),
                          h('a', {href: `#/job/${encodeURIComponent(m.suspect.job)}/overview`}, m.suspect.job)
                        ] :
                        '–'),
                  h('td', {class: 'number'}, `${m.used} / ${m.slots}`), h('td', {class: 'number'}, m.jobs),
                  h('td', {class: 'number'}, m.alive ? format.duration(m.heartbeat_seconds) + ' ago' : '–'),
                  h('td', {class: 'number'}, format.number(m.cores, 3)),
                  h('td', {class: 'number'}, format.bytes(m.memory_bytes)),
                  h('td', {class: worst && failureSign(worst) ? 'number alert' : 'number'},
                    worst ? failureSign(worst) + rateText(worst) : '–'));
            if (!exchanges.length) return row;
            return [row, h('tr', {}, h('td', {class: 'exchanges', colspan: columns.length}, exchanges))];
          }))));
  }
  return {
    element: h('div', {}, h('div', {class: 'title'}, h('h1', {}, 'Machines')), note, h('h2', {}, ' '), table),
    async update() {
      const answer = await get('api/machines');
      machines = answer.machines.map(
          m => ({
            ...m,
            condition: condition(m),
            verdict: m.suspect ? m.suspect.verdict : '',
            exchange_rate: m.worst_exchange ? m.worst_exchange.bytes_per_second : 0
          }));
      const slots = machines.reduce((sum, m) => sum + (m.alive ? m.slots : 0), 0),
            used = machines.reduce((sum, m) => sum + m.used, 0);
      note.textContent = `${machines.filter(m => m.alive).length} of ${answer.total} machines report; ${
          used} of ${slots} slots are used; driver ${answer.version}` +
          (answer.left_out ? `; ${answer.left_out} machines that are well are not shown` : '');
      if (!table.contains(document.activeElement)) draw();
    },
  };
}

// Column, title, and what a value counts: 'bytes', 'share' or a number.
const MACHINE_CHARTS = [
  ['busy_cores', 'Busy cores'], ['throttled_share', 'Throttled, share of time', 'share'],
  ['load', 'Load, mean over a minute'], ['memory_available_bytes', 'Memory available', 'bytes'],
  ['received_bytes', 'Network, received per second', 'bytes'],
  ['sent_bytes', 'Network, sent per second', 'bytes'],
  ['network_errors', 'Network, frames lost per second'],
  ['retransmitted_segments', 'TCP segments sent again per second'],
  ['disk_read_bytes', 'Disk, read per second', 'bytes'],
  ['disk_written_bytes', 'Disk, written per second', 'bytes'], ['disk_free_bytes', 'Disk, free', 'bytes'],
  ['major_faults', 'Page faults that read a disk, per second'],
  ['tokens_per_second', 'Tokens per second, all ranks here'],
  ['transfer_share', 'Bytes of collectives on their way, share of members, mean of ranks', 'share'],
  ['awaiting_share', 'Waiting for members of collectives, share of time, mean of ranks', 'share'],
  ['gpu_busy_share', 'GPUs busy, mean', 'share'],
  ['gpu_memory_busy_share', 'GPU memory busy, mean', 'share'],
  ['gpu_memory_used_bytes', 'GPU memory used, all GPUs', 'bytes'],
  ['gpu_temperature_celsius', 'GPU temperature, the hottest, °C'],
  ['gpu_power_watts', 'GPU power, all GPUs, W'],
  ['gpu_core_clock_megahertz', 'GPU clock, mean, MHz'],
  ['gpu_memory_clock_megahertz', 'GPU memory clock, mean, MHz'],
  ['gpus_throttled', 'GPUs that are throttled'],
  ['gpu_corrected_errors', 'GPU memory errors, corrected'],
  ['gpu_uncorrected_errors', 'GPU memory errors, not corrected']
];

// A chart of the last minutes of a machine.
function machineChart([name, title, counts], metrics) {
  const most = Math.max(0, ...metrics[name]);
  const power = counts === 'bytes' && most >= 1024 ? Math.min(4, Math.floor(Math.log2(most) / 10)) : 0;
  const unit = counts === 'bytes' ? [' B', ' KiB', ' MiB', ' GiB', ' TiB'][power] : '';
  const percent = v => format.number(100 * v, 3) + ' %';
  return lineChart({
    title: unit ? `${title},${unit}` : title,
    xs: metrics.seconds.map(seconds => seconds / 60),
    ys: metrics[name].map(v => (v === null ? null : v / 1024 ** power)),
    show: counts === 'share' ? percent : v => format.number(v, 3),
    place: minutes => (minutes > -0.01 ? 'now' : format.duration(-60 * minutes) + ' ago'),
    tick: counts === 'share' ? percent : format.short,
    tickX: minutes => (minutes ? `${-minutes} min` : 'now'),
    fromZero: true,
    isSmoothed: false
  });
}

function machinePage(node) {
  const note = h('p', {class: 'message', id: 'machine-note'});
  const charts = h('div', {class: 'charts', id: 'machine-charts'});
  let last = 0;
  return {
    element: h('div', {}, h('div', {class: 'title'}, h('h1', {}, node)), note, h('h2', {}, ' '), charts),
    async update() {
      if (Date.now() - last < TRACE_INTERVAL_MS) return;
      last = Date.now();
      try {
        const metrics = await get('api/machine-metrics', {node});
        note.textContent = `the last ${format.duration(-(metrics.seconds[0] || 0))}, a value each second`;
        if (charts.contains(document.activeElement) || charts.matches(':hover')) return;
        const known = MACHINE_CHARTS.filter(([name]) => name in metrics);
        charts.replaceChildren(...known.map(chart => machineChart(chart, metrics)));
      } catch (error) {
        note.textContent = error.message;
      }
    },
  };
}

// --- routes and updates ---------------------------------------------------------------------------

function routeOf() {
  const parts = location.hash.replace(/^#\//, '').split('/').map(part => {
    try {
      return decodeURIComponent(part);
    } catch (error) {
      return part;
    }
  });
  if (parts[0] === 'machines') return {page: 'machines'};
  if (parts[0] === 'machine' && parts[1]) return {page: 'machine', node: parts[1]};
  if (parts[0] === 'job' && parts[1])
    return {page: 'job', job: parts[1], tab: parts[2] || 'overview', rank: Number(parts[3]) || 0};
  return {page: 'home'};
}

function open() {
  const route = routeOf();
  if (route.page === 'home') {
    const first = state.jobs.find(job => !ENDED.includes(job.state)) || state.jobs[0];
    if (first) return location.replace('#/job/' + encodeURIComponent(first.id) + '/overview');
    state.view = {
      element:
          h('p', {class: 'empty'}, 'No job yet. Submit one with ', h('code', {}, 'megascale submit JOB.yaml'),
            '.'),
      update: async () => {}
    };
  } else if (route.page === 'machines') {
    state.view = machinesPage();
  } else if (route.page === 'machine') {
    state.view = machinePage(route.node);
  } else {
    const tabs = {overview, ranks: ranksTab, timeline: timelineTab, mesh: meshTab, logs: logsTab};
    state.view = (tabs[route.tab] || overview)(route.job, route.rank);
  }
  main.replaceChildren(state.view.element);
  document.title = (route.job ? route.job + ' – ' : '') + 'megascale';
  showJobs();
  update();
}

let updating = false, isOutdated = false;
async function update() {
  if (updating || document.hidden || !state.view) return;
  updating = true;
  isOutdated = false;
  const view = state.view;
  try {
    await view.update();
    main.removeAttribute('data-error');
    main.setAttribute('data-ready', 'true');
  } catch (error) {
    main.setAttribute('data-error', error.message);
    if (view === state.view) connection(error.message, true);
  }
  updating = false;
  if (view !== state.view || isOutdated) update();
}

function connection(words, isBad) {
  const line = document.getElementById('connection');
  line.textContent = words;
  line.className = isBad ? 'alert' : '';
}

function take(list) {
  const none = !state.jobs.length;
  state.jobs = list.jobs;
  state.total = list.total;
  connection(list.error ? list.error : `live, driver ${list.version}`, Boolean(list.error));
  if (none && routeOf().page === 'home' && state.jobs.length)
    open();
  else {
    showJobs();
    // An event that comes while the view reads is not lost: it reads again.
    isOutdated = true;
    update();
  }
}

async function begin() {
  try {
    take(await get('api/jobs'));
  } catch (error) {
    connection(error.message, true);
  }
  open();
  const events = new EventSource('events');
  events.onmessage = event => take(JSON.parse(event.data));
  events.onerror = () => connection('✕ the driver does not answer; tries again', true);
  setInterval(update, 1000);
}

window.addEventListener('hashchange', open);
// The address names the view, so the link to the content must not change it.
document.querySelector('.skip').addEventListener('click', event => {
  event.preventDefault();
  main.focus();
});
window.addEventListener('resize', () => {
  if (state.view && state.view.redraw) state.view.redraw();
});
document.addEventListener('visibilitychange', update);
begin();
