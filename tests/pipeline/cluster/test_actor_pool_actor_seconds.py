"""Lives of actors, added up by their resources."""

from __future__ import annotations

from pipeline.cluster.actor_pool import ActorSeconds
from pipeline.progress.snapshot import ResourceSeconds


def test_lives_begin_with_the_process_and_end_when_the_actor_is_given_back() -> None:
    now = 100.0
    seconds = ActorSeconds(lambda: now)
    assert seconds.used() == ResourceSeconds()
    seconds.started("a", gpus=1, cpus=4, ago=30)
    seconds.started("b", gpus=0.5, cpus=1)
    now += 10
    assert seconds.used() == ResourceSeconds(accelerators=45, cpus=170), "of those that live, up to now"
    seconds.started("a", gpus=1, cpus=4, ago=3)  # its process was replaced
    seconds.ended("b")
    now += 10
    assert seconds.used() == ResourceSeconds(accelerators=55, cpus=210)
    seconds.ended("a")
    seconds.ended("never there")
    now += 1000
    assert seconds.used() == ResourceSeconds(accelerators=55, cpus=210)
    seconds.started("a", gpus=1, cpus=0)  # a pool that grows again
    now += 1
    assert seconds.used().accelerators == 56
