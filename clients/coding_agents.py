"""What the scripts of agents share: a server with a scripted model, a fresh home, and a run of the agent in it.

Proxies that refuse every connection keep agents off all networks but the local server."""

import os
import pathlib
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

import scripted_model
from served import check

BUILT_IN = pathlib.Path(__file__).resolve().parent.parent / "crates/kvasir/kvasir-mini.gguf"
CONTEXT = 131072
RUN_SECONDS = 300


class Server:
    """A running `kvasir serve`."""

    def __init__(self, url):
        self.url = url

    def counted(self, name):
        """The sum of a counter, over its labels."""
        with urllib.request.urlopen(f"{self.url}/metrics") as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"kvasir:{name}{{"))


@contextmanager
def serving(folder, name, replies):
    """Serves under this name a model whose n-th answer of a conversation is the n-th of `replies`."""
    model, log = folder / f"{name}.gguf", folder / f"{name}.log"
    scripted_model.write(BUILT_IN, model, replies, CONTEXT)
    options = ["--port", "0", "--threads", "1", "--model-name", name, "--kv-capacity", str(CONTEXT)]
    with open(log, "w") as output:
        process = subprocess.Popen([os.environ["KVASIR_BINARY"], "serve", model, *options], stderr=output)
    try:
        address = None
        while address is None:
            check(f"the server started:\n{log.read_text()}", process.poll() is None)
            words = log.read_text().replace(",", " ").split()
            address = next((word for word in words if word.startswith("http://")), None)
            time.sleep(0.05)
        yield Server(address)
    except BaseException:
        print(log.read_text(), file=sys.stderr)
        raise
    finally:
        process.kill()
        process.wait()


def home(folder, **variables):
    """An environment with an empty home and no way to a network, and an empty repository to work in."""
    work = folder / "work"
    for place in (folder / "home", work):
        place.mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", work], check=True)
    refused = "http://127.0.0.1:9"
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    proxies = {"HTTP_PROXY": refused, "HTTPS_PROXY": refused, "NO_PROXY": "127.0.0.1"}
    return {**kept, **proxies, "HOME": str(folder / "home"), **variables}, work


def run(what, command, work, environment):
    """The standard output of an agent that must succeed."""
    done = subprocess.run(
        command, cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=RUN_SECONDS)
    check(f"{what}: {' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}", done.returncode == 0)
    return done.stdout
