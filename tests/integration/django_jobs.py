"""A Django project with handlers that use its ORM; run by workers in processes of their own."""

import os
import threading
from urllib.parse import unquote, urlsplit

import django
from django.conf import settings

AT = urlsplit(os.environ["DJANGO_JOBS_URL"])
MAX_AGE = os.environ["DJANGO_JOBS_MAX_AGE"]
settings.configure(
    INSTALLED_APPS=[],
    USE_TZ=True,
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": AT.hostname,
            "PORT": AT.port,
            "USER": unquote(AT.username or ""),
            "PASSWORD": unquote(AT.password or ""),
            "NAME": AT.path.lstrip("/"),
            "OPTIONS": {"application_name": "django"},
            "CONN_MAX_AGE": None if MAX_AGE == "none" else int(MAX_AGE),
        }
    },
)
django.setup()

from asgiref.sync import async_to_sync, sync_to_async  # noqa: E402
from django.db import connection, models, transaction  # noqa: E402

from dutiful import Context, Dutiful, Fixed, Retry, testing  # noqa: E402

app = Dutiful(lanes="one=4:*")
SOON = Retry(max_attempts=2, backoff=Fixed("10ms"))


class Note(models.Model):  # type: ignore[misc]
    text = models.TextField()

    class Meta:
        app_label = "notes"
        db_table = "notes"


@app.job(retry=SOON)
def in_thread(text: str) -> int:
    return int(Note.objects.create(text=text).pk)


@app.job(retry=SOON)
async def on_loop(text: str) -> list[int]:
    note = await Note.objects.acreate(text=text)
    return [note.pk, await backend()]


@app.job(retry=SOON, process=True)
def in_process(text: str) -> int:
    return int(Note.objects.create(text=text).pk)


@app.job(retry=SOON)
def completes(ctx: Context, text: str) -> None:
    with transaction.atomic():
        Note.objects.create(text=text)
        ctx.complete_in_sync(connection, result="kept")


@app.job(retry=SOON)
def leaves_transaction_open(text: str) -> int:
    transaction.atomic().__enter__()
    Note.objects.create(text=text)
    return threading.get_ident()


@sync_to_async
def backend() -> int:
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        return int(cursor.fetchone()[0])


# --- as a test case of Django: all in one transaction, which is rolled back


def test_case() -> None:
    with transaction.atomic():
        with testing.inline(app):
            in_thread.sync.enqueue(text="inline")
            async_to_sync(on_loop.enqueue)(text="inline")
        async_to_sync(drain)()
        # What ran in this thread is in this transaction, which still works.
        assert sorted(Note.objects.values_list("text", flat=True)) == ["drained", "inline", "inline"]
        transaction.set_rollback(True)
    assert not Note.objects.exists()


async def drain() -> None:
    async with testing.app_on(app) as kit:
        job = await on_loop.enqueue(text="drained")
        await kit.drain()
        assert (await job.record()).state == "completed"


if __name__ == "__main__":
    test_case()
