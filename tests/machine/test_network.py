"""The network interface that a study chooses."""

import socket

import pytest
import zmq

from stream_server.errors import ConfigError
from stream_server.machine.network import Interface, chosen, description_of, interfaces
from stream_server.messages import tcp

THERE = [
    Interface(name="lo", address="127.0.0.1"),
    Interface(name="eth0", address="192.168.0.7"),
    Interface(name="ib0", address="10.1.2.3"),
    Interface(name="ib0", address="10.2.2.3"),
    Interface(name="ib1", address="10.1.9.9"),
]


def test_the_interfaces_of_this_node_are_found() -> None:
    found = interfaces()
    assert Interface(name="lo", address="127.0.0.1") in found
    assert {it.name for it in found} <= {name for _, name in socket.if_nameindex()}


@pytest.mark.parametrize(
    ("wanted", "address"),
    [
        ("eth0", "192.168.0.7"),
        ("192.168.0.7", "192.168.0.7"),
        ("192.168.0.0/16", "192.168.0.7"),
        ("192.168.0.7/16", "192.168.0.7"),
        ("10.1.2.0/24", "10.1.2.3"),
        ("10.2.2.3", "10.2.2.3"),
        ("ib0", "10.1.2.3"),
    ],
)
def test_an_interface_is_chosen_by_its_name_an_address_or_a_subnet(wanted: str, address: str) -> None:
    assert chosen(wanted, THERE).address == address


@pytest.mark.parametrize("wanted", ["ib2", "10.9.0.0/16", "10.1.2.4", "", "10.1.0.0/99", "node7"])
def test_one_that_is_not_there_is_refused_with_those_that_are(wanted: str) -> None:
    with pytest.raises(
        ConfigError, match=r"network\.interface: there is no .* on node .*, which has lo \(127"
    ) as caught:
        chosen(wanted, THERE)
    assert "ib0 (10.1.2.3)" in str(caught.value)


def test_of_an_interface_with_several_addresses_it_is_said_which_one_is_used() -> None:
    assert description_of("ib0", THERE) == "ib0 (10.1.2.3; not 10.2.2.3, which it has, too)"
    assert description_of("10.2.0.0/16", THERE) == "ib0 (10.2.2.3; not 10.1.2.3, which it has, too)"
    assert description_of("eth0", THERE) == "eth0 (192.168.0.7)"


def test_an_address_of_ipv6_is_chosen_as_one_of_ipv4_is_and_comes_second() -> None:
    both = [*THERE, Interface(name="eth0", address="fd00:98::7"), Interface(name="ib2", address="fd00:99::7")]
    assert chosen("eth0", both).address == "192.168.0.7"
    assert chosen("ib2", both).address == chosen("fd00:99::/64", both).address == "fd00:99::7"
    assert chosen("fd00:98:0::7", both).name == "eth0"


def test_a_subnet_with_several_addresses_of_this_node_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ib0 \(10\.1\.2\.3\) and ib1 \(10\.1\.9\.9\) are in 10\.1\.0\.0/16"):
        chosen("10.1.0.0/16", THERE)


def test_a_number_of_ipv4_is_reached_over_ipv4_also_where_there_is_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*arguments: object, **options: object) -> None:
        raise socket.gaierror("no address of this family")

    monkeypatch.setattr("stream_server.messages.tcp.system.getaddrinfo", unknown)
    with zmq.Context() as context, context.socket(zmq.DEALER) as here:
        tcp.connect_socket(here, "tcp://127.0.0.1:9")
        assert not here.ipv6
        tcp.connect_socket(here, "tcp://[::1]:9")
        assert here.ipv6
