"""
The planted faults: what a careless change could break; the simulated lives find each of them.
"""
from tests.simulation.planting import Fault

ONE = "There is exactly one thing for each object."
NONE = "There is none for an object that is gone."
SETTLED = "All is as it should be in the end, or somebody is asked."
LIMIT = "No more calls than the limit allows."

FAULTS = {
    Fault('the intent is not written before', '_kits.external.driving:Journey._announce',
          "await self._write(step._replace(record=record))", "self.record = record",
          ONE): 5,
    Fault('the token is not stable', '_kits.external.driving:Journey._invoke',
          "token=record.token", "token=str(uuid.uuid4())", ONE): 5,
    Fault('a refused repetition tells of the first call', '_kits.external.driving:'
          'Journey._call', "if verb == 'create' and not is_first:", "if False:", ONE): 21565,
    Fault('a stale absence is trusted', '_kits.external.machine:_keep',
          "_settle(s) or", "", ONE): 13,
    Fault('a stale absence is trusted in a deletion', '_kits.external.machine:_erase',
          "_settle(s) or", "", NONE): 63,
    Fault('a deletion is trusted', '_kits.external.machine:_erase',
          "if s.observed is UNSEEN:", "if True:\n        return Write(record.drop(key), '')\n"
          "    if False:", NONE): 43,
    Fault('a vain search is trusted', '_kits.external.machine:_resolve',
          "if s.now < quiet:", "if False:", ONE): 8,
    Fault('two processes write at once', '_core.engines.reconciling.reconcilers:'
          'Reconcilers._exchange', "guards=finalizers.guard(raw, written) or application.VERSION)",
          "guards=())", ONE): 26,
    Fault('a key is dropped when its write fails', '_kits.external.driving:Journey.go',
          "await self._write_key()", "pass", ONE): 1162,
    Fault('a key is not kept through conflicts', '_kits.external.driving:Journey._write_key',
          "if not pauses:", "if True:", ONE): 52327,
    Fault('a call is repeated without what is desired', '_kits.external.driving:Journey.go',
          "self.record.phase is Phase.CREATING", "False", SETTLED): 53229,
    Fault('the call of another process is made', '_kits.external.driving:Journey._look',
          "is_armed=notes.announced == (record.token, record.attempt) and (\n"
          "            record.by == self.driver.id),", "is_armed=True,", ONE): 8,
    Fault('a lost call is held for refused', '_kits.external.failures:read',
          "is_refused=is_unsent", "is_refused=True", ONE): 127,
    Fault('the replaced thing is forgotten', '_kits.external.machine:_keep',
          "previous=record.keys", "previous=()", ONE): 1,
    Fault('the observation is of another thing', '_kits.external.driving:Journey._look',
          "if notes.observed_key == record.subject else UNSEEN", "if True else UNSEEN", ONE): 121,
    Fault('the next thing has the same token', '_kits.external.machine:_miss',
          "Record(adopted=record.adopted), \"it is gone",
          "dataclasses.replace(record, phase=Phase.WANTED, key=None), \"it is gone", SETTLED): 40,
    Fault('nothing holds the object', '_kits.external.driving:Journey._store',
          "is_held=True", "is_held=False", NONE): 20,
    Fault('a call under way is forgotten', '_kits.external.machine:step',
          "phase is Phase.WANTED and not record.keys", "not record.keys", NONE): 742,
    Fault('a failed call is made again', '_kits.external.driving:Journey._call',
          "notes.announced, notes.is_refused, notes.ended = None, False, None",
          "notes.is_refused = False", ONE): 127,
    Fault('the limit is ignored', '_kits.external.gates:Gate.enter',
          "self._measure()[1] <= self._time()", "True", LIMIT): 49,
    Fault('the next in the queue is not woken up', '_kits.external.gates:Gate.leave',
          "self._arm()", "pass", SETTLED): 419,
    Fault('one waits forever for a lost turn', '_kits.external.gates:Gate._wake',
          "caller.wake()", "pass", SETTLED): 16,
    Fault('nobody is told that it has stopped', '_kits.external.driving:Journey._rest',
          "outcome = progression.Outcome(final=True, message=step.message)", "pass",
          SETTLED): 127,
}
"""The faults, each with the first seed that finds it."""
