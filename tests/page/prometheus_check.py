"""/metrics as Prometheus sees it: promtool finds nothing to complain about, and a real server scrapes and answers.

usage: prometheus_check.py URL-WITH-TOKEN [QUERY EXPECTED]…
"""

import json
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

TIMEOUT_SECONDS = 60  # for what hangs: that a machine is busy is no failure
# Of the page demo.
DEMO_QUERIES = {
    'megascale_job_step{job_id="gpt-13b-7c2e91"}': "240",
    'megascale_job_state{job_id="gpt-13b-7c2e91",state="running"}': "1",
    'sum(megascale_node_pool{pool="spare"})': "1",
}


def fetch(url, token=None):
    headers = {"Authorization": "Bearer " + token} if token else {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, headers=headers), timeout=10) as answer:
        return answer.read().decode()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def check_text(site, token):
    text = fetch(site + "/metrics", token)
    done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
    if done.returncode != 0 or done.stderr.strip():
        raise AssertionError(f"promtool: {done.stdout}{done.stderr}")


def ask(port, query):
    answer = json.loads(fetch(f"http://127.0.0.1:{port}/api/v1/query?query=" + urllib.parse.quote(query)))
    return [sample["value"][1] for sample in answer["data"]["result"]]


def check_server(site, token, queries):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="megascale-prometheus-"))
    (folder / "token").write_text(token)
    (folder / "prometheus.yml").write_text(
        "scrape_configs:\n- job_name: megascale\n  scrape_interval: 1s\n"
        f"  authorization: {{credentials_file: {folder}/token}}\n"
        f"  static_configs: [{{targets: ['{site.removeprefix('http://')}']}}]\n")
    port = free_port()
    server = subprocess.Popen(
        ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
         f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        left = dict(queries)
        while left and time.monotonic() < deadline:
            query, expected = next(iter(left.items()))
            try:
                if ask(port, query) == [expected]:
                    del left[query]
                    continue
            except OSError:
                pass
            time.sleep(0.1)
        if left:
            raise AssertionError(f"Prometheus does not answer as expected: {left}")
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def check(url, queries):
    """`url`: that of the page, with its token. `queries`: what Prometheus has to answer, by query."""
    site, token = url.split("/?token=")
    check_text(site, token)
    check_server(site, token, queries)


if __name__ == "__main__":
    check(sys.argv[1], dict(zip(sys.argv[2::2], sys.argv[3::2])))
