"""A scheduler's view: a program with nothing but the driver's address and server reflection submits, watches, reads
logs and cancels, sees exact error codes, and finds every example of docs/api.md to be true.

Usage: scheduler_test.py MEGASCALE API_MD. Starts a driver and an agent of its own in a folder under /tmp.
"""

import base64
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import grpc

from reflection_client import ReflectionClient

JOBS = "megascale.control.v1.JobService"
PROGRAM, API_PAGE = sys.argv[1], pathlib.Path(sys.argv[2])
WAIT_S = 60


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def toy_spec(steps, **changes):
    spec = {
        "name": "toy",
        "model": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
        "data": {"files": ["/usr/share/common-licenses/GPL-3"]},
        "train": {"steps": steps, "seq_length": 32, "global_batch_size": 4, "micro_batch_size": 2, "seed": 1},
        "parallel": {"data_parallel_size": 2},
    }
    return {**spec, **changes}


class Cluster:
    """A driver and one agent of two slots, over Unix sockets or over mutual TLS."""

    def __init__(self, tls=False):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ms-api-"))
        self.processes = []
        self.tls = tls
        self.address = f"unix:{self.folder}/driver.sock"
        if tls:
            subprocess.run([PROGRAM, "certs", "init", self.folder / "certs"], check=True, stdout=subprocess.DEVNULL)
            self.address = f"localhost:{self._free_port()}"
        self._start("driver", "--listen", self.address, "--state-dir", self.folder / "state",
                    "--machine-tests", "off", *self._flags("driver"))
        self._start("agent", "--driver", self.address, "--slots", "2", "--node-id", "n0", "--run-dir",
                    self.folder / "n0", *self._flags("agent"))
        self.channel = self.channel_as("user")
        grpc.channel_ready_future(self.channel).result(timeout=WAIT_S)
        self.client = ReflectionClient(self.channel)

    def channel_as(self, role):
        if not self.tls:
            return grpc.insecure_channel(self.address)
        read = lambda name: (self.folder / "certs" / name).read_bytes()
        return grpc.secure_channel(
            self.address, grpc.ssl_channel_credentials(read("ca.pem"), read(f"{role}.key"), read(f"{role}.pem")))

    def stop(self):
        self.channel.close()
        for process in reversed(self.processes):
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def wait_for_node(self):
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            nodes = self.client.call(JOBS + "/GetCluster", {}).get("nodes", [])
            if any(node.get("alive") for node in nodes):
                return
            time.sleep(0.02)
        raise AssertionError("the agent did not come")

    def _start(self, *command):
        log = open(self.folder / f"{command[0]}.log", "wb")
        self.processes.append(subprocess.Popen([PROGRAM, *map(str, command)], stdout=log, stderr=log,
                                               preexec_fn=die_with_parent))
        log.close()

    def _flags(self, role):
        certs = self.folder / "certs"
        if not self.tls:
            return []
        return ["--tls-ca", certs / "ca.pem", "--tls-cert", certs / f"{role}.pem", "--tls-key", certs / f"{role}.key"]

    @staticmethod
    def _free_port():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]


def is_part(part, whole):
    """Returns true if everything in `part` is in `whole`, at the same place."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and is_part(value, whole[key])
                                               for key, value in part.items())
    if isinstance(part, list):
        return isinstance(whole, list) and len(part) <= len(whole) and all(map(is_part, part, whole))
    return part == whole


def examples_of(page):
    """(method, request, answer), in the page's order. An example is a block of console: a grpcurl command and, after
    it, a part of what it prints: one message, or an error as [code, message]."""
    for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL):
        found = re.match(r"\$ grpcurl .*? -d '(?P<json>.*?)' \S+ (?P<method>[\w.]+/\w+)\n(?P<answer>.*)", block, re.DOTALL)
        error = re.match(r"ERROR:\n  Code: (\w+)\n  Message: (.*)\n", found["answer"])
        yield found["method"], json.loads(found["json"]), list(error.groups()) if error else json.loads(found["answer"])


class SchedulerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.client = cls.cluster.client
        cls.cluster.wait_for_node()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.stop()

    def call(self, method, request, **options):
        return self.client.call(f"{JOBS}/{method}", request, **options)

    def refusal(self, method, request):
        with self.assertRaises(grpc.RpcError) as raised:
            self.call(method, request)
        return raised.exception.code(), raised.exception.details()

    def last_of_watch(self, job_id):
        message = None
        for message in self.client.stream(f"{JOBS}/WatchJob", {"job_id": job_id}, timeout=WAIT_S):
            pass
        return message

    def test_reflection_tells_all_services(self):
        self.assertEqual(self.client.services(),
                         ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                          "grpc.reflection.v1alpha.ServerReflection",
                          "megascale.agent.v1.AgentService", JOBS])
        self.assertIn("SubmitJob", self.client.methods(JOBS))

    def test_a_job_is_submitted_watched_to_its_end_and_its_logs_are_read(self):
        request = {"job_id": "whole", "spec": toy_spec(5)}
        self.assertEqual(self.call("SubmitJob", request)["job"]["jobId"], "whole")
        steps = []
        for message in self.client.stream(f"{JOBS}/WatchJob", {"job_id": "whole"}, timeout=WAIT_S):
            steps += [int(step["step"]) for step in message.get("steps", [])]
        self.assertEqual(message["job"]["state"], "JOB_STATE_SUCCEEDED", message["job"].get("message"))
        self.assertEqual(message["job"]["lastStep"], "5")
        self.assertEqual(steps, [1, 2, 3, 4, 5][5 - len(steps):])
        self.assertEqual(self.call("GetJob", {"job_id": "whole"})["job"]["reason"], message["job"]["reason"])
        self.assertIn("whole", [job["jobId"] for job in self.call("ListJobs", {})["jobs"]])
        logs = {}
        for piece in self.client.stream(f"{JOBS}/StreamLogs", {"job_id": "whole", "rank": -1}, timeout=WAIT_S):
            logs.setdefault(piece.get("rank", 0), b"")
            logs[piece.get("rank", 0)] += base64.b64decode(piece["data"])
        self.assertEqual(sorted(logs), [-1, 0, 1])
        self.assertIn(b"worker 1", logs[1])

    def test_a_submit_is_idempotent_by_its_id(self):
        request = {"job_id": "twice", "spec": toy_spec(3)}
        first = self.call("SubmitJob", request)["job"]
        again = self.call("SubmitJob", request)["job"]
        self.assertEqual(first["submittedAt"], again["submittedAt"])
        code, details = self.refusal("SubmitJob", {"job_id": "twice", "spec": toy_spec(4)})
        self.assertEqual(code, grpc.StatusCode.ALREADY_EXISTS)
        self.assertEqual(details, "job id twice: is taken by a job with another specification; choose another job id, or leave it out")

    def test_a_running_job_is_cancelled_once_and_again(self):
        self.call("SubmitJob", {"job_id": "endless", "spec": toy_spec(1000000)})
        for message in self.client.stream(f"{JOBS}/WatchJob", {"job_id": "endless"}, timeout=WAIT_S):
            if int(message["job"].get("lastStep", 0)) >= 1:
                break
        ranks = list(self.client.stream(f"{JOBS}/StreamSpans", {"job_id": "endless"}, timeout=WAIT_S))
        self.assertEqual([message.get("rank", 0) for message in ranks], [0, 1])
        for message in ranks:
            self.assertEqual((message["nodeId"], message["attempt"]), ("n0", "1"))
            self.assertGreater(len(message["spans"]), 0)
            for span in message["spans"]:
                self.assertLessEqual(int(span["beginNanos"]), int(message["readNanos"]))
        self.call("CancelJob", {"job_id": "endless", "grace": "5s"})
        self.assertEqual(self.last_of_watch("endless")["job"]["state"], "JOB_STATE_CANCELLED")
        self.assertEqual(self.call("CancelJob", {"job_id": "endless"})["job"]["state"], "JOB_STATE_CANCELLED")

    def test_errors_have_their_codes_and_say_what_is_wrong(self):
        for method in ["GetJob", "CancelJob", "ListSteps"]:
            code, details = self.refusal(method, {"job_id": "nobody"})
            self.assertEqual(code, grpc.StatusCode.NOT_FOUND, method)
            self.assertIn("nobody", details)
        for method in ["WatchJob", "StreamLogs", "StreamSpans"]:
            with self.assertRaises(grpc.RpcError) as raised:
                list(self.client.stream(f"{JOBS}/{method}", {"job_id": "nobody"}, timeout=WAIT_S))
            self.assertEqual(raised.exception.code(), grpc.StatusCode.NOT_FOUND, method)
        code, details = self.refusal("SubmitJob", {"job_id": "../x", "spec": toy_spec(1)})
        self.assertEqual(code, grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("job id '../x'", details)
        code, details = self.refusal("SubmitJob", {"job_id": "bad", "spec": toy_spec(1, model={"hidden_size": -1})})
        self.assertEqual(code, grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("hidden_size", details)
        code, details = self.refusal("CancelJob", {"job_id": "nobody", "grace": "-1s"})
        self.assertEqual(code, grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("grace", details)

    def test_cancelling_a_job_that_ended_well_is_a_failed_precondition(self):
        self.call("SubmitJob", {"job_id": "ended", "spec": toy_spec(2)})
        self.assertEqual(self.last_of_watch("ended")["job"]["state"], "JOB_STATE_SUCCEEDED")
        code, details = self.refusal("CancelJob", {"job_id": "ended"})
        self.assertEqual(code, grpc.StatusCode.FAILED_PRECONDITION)
        self.assertIn("there is nothing to cancel", details)


class ApiPageTest(unittest.TestCase):
    """docs/api.md against a driver of its own."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.client = cls.cluster.client
        cls.cluster.wait_for_node()
        cls.page = API_PAGE.read_text()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.stop()

    def test_every_call_and_every_field_of_its_request_has_its_place(self):
        sections = {}
        for section in re.split(r"^## ", self.page, flags=re.MULTILINE)[1:]:
            sections[section.split("\n", 1)[0].strip()] = section
        for name, method in self.client.methods(JOBS).items():
            self.assertIn(name, sections, f"docs/api.md has no section '## {name}'")
            for part in ["Errors", "Deadline", "Idempotent", "grpcurl"]:
                self.assertIn(part, sections[name], f"docs/api.md, {name}")
            for field in method.input_type.fields_by_name:
                self.assertIn(f"`{field}`", sections[name], f"docs/api.md, {name}")

    def test_every_example_answers_as_the_page_says(self):
        examples = list(examples_of(self.page))
        self.assertEqual({method.split("/")[1] for method, _, _ in examples}, set(self.client.methods(JOBS)))
        for method, request, shown in examples:
            with self.subTest(method=method, request=request):
                answers = self.run_example(method, request)
                # What a job's ranks did is kept about a second after the job's end.
                deadline = time.monotonic() + WAIT_S
                while (method.split("/")[1] in ("StreamSpans", "StreamEvidence") and time.monotonic() < deadline
                       and not any(is_part(shown, answer) for answer in answers)):
                    time.sleep(0.1)
                    answers = self.run_example(method, request)
                self.assertTrue(any(is_part(shown, answer) for answer in answers),
                                f"the page shows {shown}, the driver answers {answers}")

    def run_example(self, method, request):
        service, name = method.split("/")
        try:
            if self.client.methods(service)[name].server_streaming:
                return list(self.client.stream(method, request, timeout=WAIT_S))
            return [self.client.call(method, request)]
        except grpc.RpcError as error:
            return [["".join(word.capitalize() for word in error.code().name.split("_")), error.details()]]


class TlsTest(unittest.TestCase):
    def test_a_scheduler_with_a_users_certificate_is_let_in_and_others_are_not(self):
        cluster = Cluster(tls=True)
        try:
            cluster.wait_for_node()
            cluster.client.call(JOBS + "/SubmitJob", {"job_id": "tls", "spec": toy_spec(2)})
            for message in cluster.client.stream(JOBS + "/WatchJob", {"job_id": "tls"}, timeout=WAIT_S):
                pass
            self.assertEqual(message["job"]["state"], "JOB_STATE_SUCCEEDED", message)
            with self.assertRaises(grpc.RpcError) as raised:
                ReflectionClient(cluster.channel_as("agent")).services()
            self.assertEqual(raised.exception.code(), grpc.StatusCode.PERMISSION_DENIED)
            ca = (cluster.folder / "certs" / "ca.pem").read_bytes()
            nobody = grpc.secure_channel(cluster.address, grpc.ssl_channel_credentials(ca))
            with self.assertRaises(grpc.RpcError) as raised:
                ReflectionClient(nobody).services()
            self.assertEqual(raised.exception.code(), grpc.StatusCode.UNAVAILABLE)
        finally:
            cluster.stop()


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
