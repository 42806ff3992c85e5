"""A handler's own writes, committed with its job's completion or not at all."""

import pytest

from dutiful.core.errors import ClaimLost
from dutiful.core.transitions import State
from dutiful.store import Store
from dutiful.testing.store_suite.builders import claim, claim_one, complete, crash, new_id, start_one, state, token


def table() -> str:
    """A name for a table of the handler's own; that it can be created shows that it was not there."""
    return f"effect_{new_id().hex}"


class TransactionSuite:
    async def test_leaving_the_block_completes_the_job_with_its_result(self, store: Store) -> None:
        claimed, name = await start_one(store), table()

        async with store.transaction(token(claimed), lambda: '{"n": 1}') as transaction:
            await transaction.execute(f"CREATE TABLE {name} (n integer)")

        record = await store.find(claimed.job_id)
        assert record is not None
        assert (record.state, record.result) == (State.COMPLETED, {"n": 1})
        with pytest.raises(Exception, match=name):  # it is there already
            await create(store, name)

    async def test_an_error_in_the_block_rolls_its_writes_back_and_leaves_the_job_running(self, store: Store) -> None:
        claimed, name = await start_one(store), table()

        with pytest.raises(ZeroDivisionError):
            async with store.transaction(token(claimed), lambda: None) as transaction:
                await transaction.execute(f"CREATE TABLE {name} (n integer)")
                raise ZeroDivisionError

        assert await state(store, claimed.job_id) is State.RUNNING
        await create(store, name)
        assert await complete(store, claimed) == []

    async def test_a_lost_claim_rolls_its_writes_back(self, store: Store) -> None:
        lost, name = await start_one(store), table()
        now = await crash(store)
        held = await claim_one(store, limit=0, suspects=1, now=now)

        with pytest.raises(ClaimLost):
            async with store.transaction(token(lost), lambda: None) as transaction:
                await transaction.execute(f"CREATE TABLE {name} (n integer)")

        assert await state(store, held.job_id) is State.RUNNING
        await create(store, name)

    async def test_a_statement_that_fails_leaves_the_job_running(self, store: Store) -> None:
        claimed, name = await start_one(store), table()

        with pytest.raises(Exception, match="no_such_table"):
            async with store.transaction(token(claimed), lambda: None) as transaction:
                await transaction.execute(f"CREATE TABLE {name} (n integer)")
                await transaction.execute("INSERT INTO no_such_table VALUES (1)")

        assert await state(store, claimed.job_id) is State.RUNNING
        await create(store, name)

    async def test_a_job_completed_in_a_block_is_not_run_again(self, store: Store) -> None:
        claimed = await start_one(store)

        async with store.transaction(token(claimed), lambda: None):
            pass

        assert await claim(store) == []
        with pytest.raises(ClaimLost):
            async with store.transaction(token(claimed), lambda: None):
                pass
        assert await store.check_places() == []


async def create(store: Store, name: str) -> None:
    """Create the table in the transaction of another job."""
    async with store.transaction(token(await start_one(store)), lambda: None) as transaction:
        await transaction.execute(f"CREATE TABLE {name} (n integer)")
