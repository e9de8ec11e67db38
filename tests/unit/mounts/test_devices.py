"""Filesystems told apart by device number."""

import os

from ctxd.mounts.filesystem_id import Devices, host_devices


def test_a_device_keeps_its_filesystem_and_shares_it_with_no_other() -> None:
    devices = Devices("host", frozenset({1, 2}))
    assert devices.filesystem_id(1) == devices.filesystem_id(2) == "host"
    assert devices.filesystem_id(3) == devices.filesystem_id(3) != "host"
    assert devices.filesystem_id(3) != devices.filesystem_id(4)


def test_a_device_is_the_same_filesystem_after_a_restart_and_another_on_another_host() -> None:
    assert Devices("host").filesystem_id(3) == Devices("host", frozenset({1})).filesystem_id(3)
    assert Devices("host").filesystem_id(3) != Devices("other").filesystem_id(3)


def test_the_devices_of_the_root_and_of_the_users_home_are_the_hosts() -> None:
    assert host_devices() >= {os.stat("/").st_dev, os.stat(os.path.expanduser("~")).st_dev}
    assert os.stat("/proc").st_dev not in host_devices()


def test_a_missing_place_is_ignored() -> None:
    assert host_devices(["/", "/there/is/none", "~nobody-of-that-name/x"]) == {os.stat("/").st_dev}
