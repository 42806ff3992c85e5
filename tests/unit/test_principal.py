"""Roles and the names of tenants."""

import pytest

from dutiful.core.errors import UsageError
from dutiful.core.principal import ANY_TENANT, Role, check_tenant


def test_each_role_reaches_itself_and_the_roles_before_it() -> None:
    reached = {role: [other for other in Role if role.reaches(other)] for role in Role}
    assert reached == {
        Role.VIEWER: [Role.VIEWER],
        Role.STAFF: [Role.VIEWER, Role.STAFF],
        Role.MANAGER: [Role.VIEWER, Role.STAFF, Role.MANAGER],
        Role.ADMIN: [Role.VIEWER, Role.STAFF, Role.MANAGER, Role.ADMIN],
    }


@pytest.mark.parametrize("name", ["acme", "a*", "名", " "])
def test_the_name_of_a_tenant_is_returned_as_it_is(name: str) -> None:
    assert check_tenant(name) == name


@pytest.mark.parametrize("name", ["", ANY_TENANT, "ac\0me"])
def test_a_name_that_means_all_or_none_or_cannot_be_stored_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not a name"):
        check_tenant(name)
