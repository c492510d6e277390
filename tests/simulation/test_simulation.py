"""
The simulation of the whole operator: some of the seeds; ``python -m tests.simulation`` runs more.
"""
import collections
import os
import subprocess
import sys

import pytest

from tests.simulation import command, plans, shrinking, worlds
from tests.simulation.guarantees import Violation

BATCHES = 8


@pytest.mark.parametrize('batch', range(BATCHES))
def test_all_guarantees_hold_whatever_happens(batch):
    for seed in command.USUAL[batch::BATCHES]:
        report = worlds.run(plans.make(seed))
        if report.violation is not None:
            report = command.shrink(report)
            story = '\n'.join(report.story)
            pytest.fail(f"{story}\n\nRun it again: {command.make_command(report.plan)}")


@pytest.mark.parametrize('batch', range(4))
def test_all_guarantees_hold_while_objects_are_paused(batch):
    for seed in command.USUAL[batch:24:4]:
        report = worlds.run(plans.make(seed, is_paused=True))
        assert report.violation is None, '\n'.join([
            *report.story, command.make_command(report.plan)])


@pytest.mark.parametrize('batch', range(4))
def test_all_guarantees_hold_with_options_that_are_rarely_used_together(batch):
    for seed in command.USUAL[batch:24:4]:
        report = worlds.run(plans.make(seed, is_mixed=True))
        assert report.violation is None, '\n'.join([
            *report.story, command.make_command(report.plan)])


@pytest.mark.parametrize('batch', range(4))
def test_all_guarantees_hold_while_replicas_share_the_objects(batch):
    for seed in command.USUAL[batch:8:4]:
        report = worlds.run(plans.make(seed, is_sharded=True))
        assert report.violation is None, '\n'.join([
            *report.story, command.make_command(report.plan)])


@pytest.mark.parametrize('seed, fault', [
    (61, "the virtual time stands still, as a deadline is nearer than the clock can tell"),
    (97, "a daemon begins in a shard that is gained again while its former thread goes on"),
])
def test_faults_that_shards_have_shown_do_not_come_back(seed, fault):
    assert worlds.run(plans.make(seed, is_sharded=True)).violation is None, fault


@pytest.mark.parametrize('seed, fault', [
    (394, "a sub-handler is called though a write after a nested one has shown no finalizer"),
])
def test_faults_that_rare_options_have_shown_do_not_come_back(seed, fault):
    plan = plans.make(seed, is_paused=True, is_mixed=True)
    assert worlds.run(plan).violation is None, fault


@pytest.mark.parametrize('seed, fault', [
    (79, "owned resources that Kubernetes deletes are made again without a pause"),
    (2490, "an object does not wait for the first of its namesakes, but only for the second one"),
    (5134, "handlers are called again for a deleted object, of which older states come late"),
    (5304, "a daemon begins for a deleted object of which a sub-handler still runs"),
    (3899, "sub-handlers are not called for a return, as their records have outlived their cycle"),
    (5272, "after a pause, a state is handled that is older than the one that a write has met"),
    (3957, "a finalizer stays, as a timer has ended with a patch while handlers of updates ran"),
    (702379, "deletion handlers are called again after the release, for an older state"),
    (700879, "an object is resumed twice, as the response to its closing patch was lost"),
    (720973, "another operator begins a daemon while the thread of that daemon goes on at exit"),
    (712425, "a handler is called without the finalizer, which others have removed meanwhile"),
    (299, "after a takeover, event handlers are shown an old state, and not the newest one"),
    (970170, "outcomes are written at exit after the closing PATCH whose response is not known"),
    (980093, "the shutdown waits for a hanging write which was sent while a sub-handler ran"),
    (664, "newer records are written over at exit, though the response to a timer has shown them"),
    (4000207, "outcomes are dropped, as the object could not be read after a conflict with them"),
    (7301967, "a former leader reports the end of an object, as a write for that object has hung"),
    (7008996, "a timer whose patch was cut off by a lost Lease has timed out when it leads again"),
    (9905882, "the finalizer is written, but not what the handlers have done before"),
    (9102264, "after a pause that is over at once, nothing is listed again, and nothing handled"),
])
def test_faults_that_a_seed_has_found_do_not_come_back(seed, fault):
    assert worlds.run(plans.make(seed)).violation is None, fault


@pytest.mark.parametrize('seed, fault', [
    (711146, "a list that is older than the response to the last write is taken as the newest"),
    (730015, "what is done is not written at exit, if an event handler has to be interrupted"),
    (965567, "finished sub-handlers are called again, as another one has seen an older state"),
    (3000254, "the next sub-handler is called, though a PATCH has met newer records meanwhile"),
    (2000018, "a conflict with an own PATCH, whose response was lost, is taken for another's"),
    (4101275, "a state is lost that has come before a conflict was answered with an older one"),
    (4102777, "event handlers are shown the end with an older state than they were shown before"),
    (4102810, "a sub-handler is called though the last response has shown no finalizer"),
    (9602401, "the record of a former process stays, as it came after the new cycle had begun"),
    (4104811, "newer records of sub-handlers are not noticed if their parent has the same one"),
    (22007043, "what was done for an older state is taken as stored, as another state is stored"),
    (47000602, "a handler is called again in the state that it has seen, after another was met"),
])
def test_faults_that_an_older_state_after_a_restart_has_shown_do_not_come_back(seed, fault):
    assert worlds.run(plans.make(seed, is_stale=True)).violation is None, fault


@pytest.mark.parametrize('seed, truth', [
    (971253, "an older state can lack a resuming handler that the newest one shows as finished"),
    (972008, "a handler sees a change again if another one has seen only a part of it"),
    (960506, "a handler sees a change again if another one has missed the return from it"),
    (965523, "a number that was refused once can be set while nobody refuses it"),
    (2000955, "two PATCHes that slow webhooks review take longer than the exit"),
    (4002010, "what is done for older records is lost if another operator has written newer ones"),
    (7008438, "a daemon goes on without the finalizer while a write for its object is under way"),
    (4002387, "what is done while writes are refused is not written if the exit comes soon"),
    (9101527, "webhooks of a process that is cut off are called until the next one has its own"),
    (8906044, "what is done right before an exit is not written if its first PATCH takes too long"),
    (9506178, "what a thread has done in a former term is not recorded in the next one"),
    (9906270, "what could not be stored before the Lease was lost is done again"),
    (9700504, "an object is not there before it is reviewed, and webhooks can take their time"),
    (10008836, "PATCHes that webhooks review take longer than the exit, as reviews are on the way"),
    (27020103, "what is done is not written at the exit if both its PATCHes take long"),
    (8504354, "a new leader whose watches are behind handles what the former one has just handled"),
])
def test_what_only_looked_like_a_violation_is_none(seed, truth):
    assert worlds.run(plans.make(seed)).violation is None, truth


@pytest.mark.parametrize('seed, truth', [
    (3000700, "what is done for an older state is lost if the process stops before it knows"),
    (3100152, "an API server that is behind does not show what others write meanwhile, either"),
    (3100910, "what is done for an older state is not stored when another closes the cycle"),
    (3101198, "a record of an earlier process does not show that a later call has ended"),
    (24, "what is done for an older state is not written over a newer one, which is old, too"),
    (5100508, "a daemon goes on without the finalizer until the newest state is looked at"),
    (5100651, "what could not be written before an exit is lost, and nobody knows of it"),
    (5102513, "a finalizer of others is removed when webhooks work again"),
    (4101329, "a new leader that was blind begins with older records than the former one has left"),
    (4101766, "what is applied for a namesake of the owner is collected: that owner is absent"),
    (4102755, "the delay of an attempt ends if another operator has written newer records"),
    (4100100, "what a process has done for an older state is stored if it writes that itself"),
    (7106538, "a handler sees a change again if the object has had another state since the last"),
    (7400829, "a thread writes nothing for its timer in a later term than that of its call"),
    (9204247, "a thread can begin for a state to which the object has returned, when it has left"),
    (9204353, "what is done for an older state is not written, and the time of the newest is over"),
    (9207872, "what is done beside a process that is behind is not written over its records"),
    (9004272, "the delay of an attempt is lost if the process is killed while writes are refused"),
    (8604372, "the delay of an attempt is lost if the process is killed before it is stored"),
    (8601311, "what another process closes counts what a killed one has done for an older state"),
    (30050241, "what another process does for an older state meanwhile is not what is handled"),
    (9805150, "a number that is there already can be set again, as only changes are refused"),
    (10105459, "operators that do not know of each other count delays from their own attempts"),
    (7100489, "the time of a handler counts from its record, which was written for an older state"),
])
def test_what_an_older_state_made_look_like_a_violation_is_none(seed, truth):
    plan = plans.make(seed, is_stale=True)
    assert worlds.run(plan).violation is None, truth


PRINT = """
import sys
from tests.simulation import plans, worlds
for seed in sys.argv[1:]:
    print(worlds.run(plans.make(int(seed))).digest)
"""


def test_the_same_seed_is_the_same_story():
    """It holds in any process and any order; the hashes of objects and strings differ there."""
    seeds = [13, 16, 19]
    assert 'admission' in plans.make(13).features
    assert 'election' in plans.make(16).features
    assert 'sync daemon' in plans.make(19).features
    stories = [worlds.run(plans.make(seed)).digest for seed in seeds]
    for hashes, order in ('1', [0, 1, 2]), ('2', [2, 1, 0]):
        process = subprocess.run(
            [sys.executable, '-c', PRINT, *(str(seeds[index]) for index in order)],
            env={**os.environ, 'PYTHONHASHSEED': hashes},
            capture_output=True, text=True, check=True)
        assert process.stdout.split() == [stories[index] for index in order]


def test_an_operator_does_not_grow_in_some_hours():
    assert worlds.run(plans.make_night(0, hours=3, busy=450)).violation is None


def test_what_grows_after_the_first_hours_is_a_violation():
    census = [collections.Counter(tasks=number) for number in (5, 50, 52)]
    worlds.check_flat(census)
    with pytest.raises(Violation, match="flat: there are 56 tasks, not 50 any more"):
        worlds.check_flat([*census, collections.Counter(tasks=56)])


def test_other_seeds_are_other_stories():
    assert worlds.run(plans.make(1)).digest != worlds.run(plans.make(2)).digest


def test_a_failing_plan_is_shrunk_to_what_it_fails_by():
    plan = plans.make(5)
    culprit = plan.steps[len(plan.steps) // 2]
    shrunk = shrinking.shrink(plan, lambda candidate: culprit in candidate.steps)
    assert shrunk.steps == (culprit,)
    assert len(shrunk.features) == 1
    assert (shrunk.disorder, shrunk.latency) == (0.0, (0.0, 0.0))


def test_a_shrunk_plan_is_made_again_of_its_command():
    plan = plans.make(5)
    shrunk = plan.keep([0, 2])
    assert command.apply_changes(plan, command.get_changes(shrunk)) == shrunk


def test_a_violation_names_its_guarantee():
    assert str(Violation('rest', "something still runs")) == "rest: something still runs"
