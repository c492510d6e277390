"""
The planted faults: what a careless change could break, each in one place.
"""
from tests.simulation.planting import Fault

SEEN = "Every handler handles every lasting state that concerns it."
ONCE = "Kopf calls a handler exactly once per cause, unless the process is killed."
ONE = "No two attempts run at the same time for one object."
GONE = "Deleted objects leave nothing behind."
WATCH = "A watch survives every response of the API server."
HELD = "A finalizer never remains without a reason, and is there before its handlers begin."
OWN = "A write reaches the intended object, and never overwrites the work of others."
LEAVE = "After a stop by a signal, no handler is repeated, and nothing is left running."
DELAY = "Handlers that wait for a retry wait for their delay, also over restarts."
INDEX = "Indices are complete before Kopf calls any handler of objects."
DAEMON = "A daemon runs while its object exists and matches, and never twice."
RESUME = "Resuming handlers see each object once in each process."
LEVEL = "The owned resources are as the handler has returned them."
PEER = "Only the operator with the highest priority works."
LEAD = "Only the replica that holds the Lease works."
SHARD = "Only the replica that holds the shard of an object works for it."
ADMIT = "Kopf calls admission handlers before the API server stores an object."
WEBHOOKS = "At shutdown, the operator removes its webhooks, except for persistent webhooks."
PAUSE = "While an object is paused, its handlers are not called, and its deletion waits."
STALE = "What others have handled is not handled again, and no old state releases an object."
TIME = "The timeout is how long a handler has from the beginning of its first attempt."
RETURN = "Kopf cannot interrupt a sync handler: its outcome is what it returns."
THREAD = "Sync handlers run in threads, so they can block."
CONTEXT = "Functions that find the current object implicitly work in threads, too."
ECHO = "Event handlers see the newest state, and the states in their order."

FAULTS = (
    # Inboxes and informers.
    Fault('the echo guard is forgotten', '_core.path.inboxes:Inbox.offer',
          "if self.version is not None and not bodies.is_newer(version, self.version):",
          "if False:", ONCE),
    Fault('a response is not taken as the newest state', '_core.path.inboxes:Inbox.accept',
          "if isinstance(version, int) and not isinstance(self.version, str):",
          "if True:\n        return True\n    if False:", ONCE),
    Fault('a reminder is lost', '_core.path.inboxes:Inbox.remind',
          "self.is_due = True", "pass", SEEN),
    Fault('what a new list lacks is kept', '_core.path.intake:Informer.list_ended',
          "self._note_deletion(item, None)", "pass", GONE),
    Fault('the daemons of a gone object go on', '_core.path.intake:Informer._stop',
          "item.companions.stop(reason)", "pass", GONE),
    Fault('an index entry is left', '_core.path.indexgates:Gate.forget',
          "self._discard(item)", "pass", GONE),
    Fault('namesakes do not wait for each other',
          '_core.path.intake:Informer._yield_to_namesake',
          "if older is not None:", "if False:", ONE),
    Fault('objects are known by their names', '_cogs.structs.bodies:get_uid',
          "return meta.get('uid') or f", "return f", OWN),
    Fault('deletions are not shown to event handlers', '_core.path.intake:Informer._note_deletion',
          "if self.handlers.watching:", "if False:", ECHO),
    Fault('echoes are not shown to event handlers', '_core.path.intake:Informer.changed',
          "if is_unseen:", "if is_unseen and is_new_state:", ECHO),
    Fault('all is new after a pause', '_core.path.intake:InformerFactory.resume',
          "informer.distrust()", "pass", PEER),

    # The queue, the throttling, and the wake-ups.
    Fault('two passes at once', '_core.path.queueing:WorkQueue.add',
          "item.phase is not Phase.RESTING", "item.phase is Phase.QUEUED", ONE),
    Fault('what is indexed is queued again', '_core.path.queueing:WorkQueue._release',
          "    item.source.schedule(item) if", "    if item.is_at_work:\n"
          "        item.phase = Phase.RESTING\n"
          "    item.source.schedule(item) if", ONE),
    Fault('a wake-up is lost', '_cogs.aiokits.wakeups:Wakeups._wake_up',
          "        if self._heap:\n", "        if False:\n", SEEN),
    Fault('a throttled object is not tried again', '_core.path.turns:Processor._throttle',
          "self._alarms.sleep(item, asyncio.get_running_loop().time() + delay)", "pass", SEEN),
    Fault('outcomes are not written at exit', '_core.path.turns:Processor.save',
          "if item.cycle is None or not", "if True or not", LEAVE),
    Fault('outcomes are never written in time', '_core.path.saving:Saver.arm',
          "if self._timer is None and", "if False and", ONCE),

    # Decisions and cycles.
    Fault('the finalizer is removed early', '_core.actions.decisions:_end',
          "if situation.view.has_finalizer and not (situation.accompanied or situation.must_keep):",
          "if situation.view.has_finalizer:", DAEMON),
    Fault('handlers are called before the finalizer', '_core.actions.decisions:decide',
          "elif is_needed != view.has_finalizer and",
          "elif view.has_finalizer and not is_needed and", HELD),
    Fault('daemons need no finalizer', '_core.actions.decisions:decide',
          "is_needed = selection.needs_finalizer or (",
          "is_needed = selection.needs_finalizer or False and (", HELD),
    Fault('an unneeded finalizer stays', '_core.actions.decisions:decide',
          "elif is_needed != view.has_finalizer and",
          "elif is_needed and not view.has_finalizer and", HELD),
    Fault('the deletion is released without its handlers', '_core.actions.decisions:decide',
          "if not view.has_finalizer and (is_needed or not selection.handlers):",
          "if view.has_finalizer and not situation.accompanied:\n"
          "            return Decision(Release(RELEASING), cycle or cycles.Cycle(reason))\n"
          "        if not view.has_finalizer and (is_needed or not selection.handlers):", HELD),
    Fault('the present state counts as handled', '_core.actions.cycles:Cycle.conclude',
          "base = base if base is not None else essence", "base = essence", SEEN),
    Fault('the base is forgotten at a restart', '_core.actions.recording:restore',
          "base=seen.base if found else None,", "base=None,", SEEN),
    Fault('the progress is forgotten at a restart', '_core.actions.recording:restore',
          "if not found and seen is None and (", "if True or (", ONCE),
    Fault('the progress is not written', '_core.actions.recording:_make_progress',
          "elif handler_id in cycle.unsaved or not state.attempts or (", "elif False and (", ONCE),
    Fault('the progress is not removed', '_core.actions.recording:make_closing',
          "if cycle.has_records or known is not None:\n", "if False:\n", GONE),
    Fault('a retry is dropped', '_core.actions.progression:HandlerState.after',
          "failure=outcome.final and outcome.exception is not None,",
          "failure=outcome.exception is not None,", SEEN),
    Fault('retries do not wait', '_core.actions.progression:find_due',
          "if states[handler.id].is_due(now)]", "if not states[handler.id].finished]",
          DELAY),
    Fault('delays are forgotten at a restart', '_core.actions.progression:HandlerState.from_record',
          "due=now.at(delayed) if delayed is not None else float('-inf'),",
          "due=float('-inf'),", DELAY),
    Fault('attempts are not counted', '_core.actions.progression:HandlerState.after',
          "retries=self.retries + (not outcome.waiting or bool(subrefs)),",
          "retries=self.retries,", DELAY),
    Fault('resuming is forgotten', '_core.actions.decisions:detect',
          "causes.Reason.RESUME if initial else causes.Reason.NOOP", "causes.Reason.NOOP", RESUME),
    Fault('objects are resumed again', '_core.path.objects:Item.resume',
          "self.initial = False", "pass", RESUME),
    Fault('resuming of an earlier process counts', '_core.path.handling:Handling.look',
          "now=self._now, initial=item.initial)", "now=self._now)", RESUME),
    Fault('a return to the handled state is no resuming',
          '_core.path.handling:Handling._is_resumed', "return all(",
          "return False and all(", RESUME),
    Fault('finished sub-handlers are called again',
          '_core.path.handling:Handling._execute_children',
          "selection.handlers, recall=self._recall,", "selection.handlers, "
          "recall=lambda _: None,", ONCE),

    Fault('running handlers do not name their sub-handlers',
          '_core.actions.cycles:Cycle.attach',
          "if subrefs == state.subrefs:", "if True:", SEEN),

    # Writing.
    Fault('a namesake is patched', '_core.actions.application:_merge',
          "guard = {key: meta[key]} if key in meta else {}", "guard = {}", OWN),
    Fault('a JSON patch does not test the version', '_core.actions.application:exchange',
          "raw, [*tests, *ops],", "raw, ops,", OWN),
    Fault('the finalizer replaces those of others', '_core.path.saving:Saver.switch_finalizer',
          "finalizers.guard(self.raw, patch)", "[('metadata', 'uid')]", OWN),
    Fault('the closing is sent before the patches', '_core.actions.application:apply',
          "parts = [status, rest] if rest else [status]",
          "parts = [rest, status] if rest else [status]", SEEN),

    # Watching.
    Fault('an expired watch is tried again and again',
          '_cogs.clients.watching:_Watcher.list_and_watch',
          "except errors.APIGoneError as e:\n        self._relisting = True",
          "except errors.APIGoneError as e:\n        pass", WATCH),
    Fault('a broken watch goes on from its beginning', '_cogs.clients.watching:_Watcher._note',
          "self.pulse.reached = version or self.pulse.reached", "pass", ECHO),
    Fault('an interrupted watch begins with now', '_cogs.clients.watching:_Watcher._get_params',
          "params.update(resourceVersion=self.pulse.reached)", "pass", SEEN),
    Fault('a refused watch ends', '_cogs.clients.watching:_Watcher.list_and_watch',
          "return self._streak.fail(e)", "return 1e9", WATCH),

    # Indices, daemons, timers.
    Fault('a changed object stays under its old keys',
          '_core.engines.indexing:OperatorIndex.replace',
          "if key not in values:", "if False:", INDEX),
    Fault('the gate opens before the indices are filled', '_core.path.indexgates:Gate._check',
          "(self.is_sealed and not self._unfilled)", "self.is_sealed", INDEX),
    Fault('a daemon is started twice', '_core.engines.daemons.spawning:adjust',
          "if handler.key not in keys and", "if", DAEMON),
    Fault('a daemon that was stopped is done', '_core.engines.daemons.companions:Companion._settle',
          "self._end(done=False)", "self._end(done=True)", DAEMON),
    Fault('the end of a daemon wakes up nobody',
          '_core.engines.daemons.companions:Companions.forget',
          "self.host.wake_up()", "pass", HELD),
    Fault('daemons go on for other labels', '_core.engines.daemons.spawning:adjust',
          "companion.stop(Reason.FILTERS_MISMATCH)", "pass", DAEMON),
    Fault('daemons go on during the deletion', '_core.path.turns:Processor._accompany',
          "companions.stop(stopping.DaemonStoppingReason.RESOURCE_DELETED)", "pass", HELD),
    Fault('a timer is called once', '_core.engines.daemons.timers:get_next',
          "return ended + handler.interval", "return progression.NEVER", DAEMON),
    Fault('the patch of a timer is lost with its request',
          '_core.engines.daemons.companions:Companion._save',
          "merged = patches.combine(taken, patches.Patch(patch))", "return True", DAEMON),
    Fault('daemons go on at exit', '_core.engines.daemons.companions:Spawner.stop',
          "companion.stop(reason)", "pass", LEAVE),
    Fault('a daemon that has ended begins again',
          '_core.engines.daemons.companions:Companions.forget',
          "self._done |= {companion.handler.key}", "pass", DAEMON),
    Fault('failed daemons do not wait', '_core.engines.daemons.companions:Companion._judge',
          "else progression.space(self.state.due, invoked=invoked)", "else invoked", DELAY),
    Fault('attempts of daemons are not counted',
          '_core.engines.daemons.companions:Companion._attempt',
          "state = self.state = self.state or", "state = self.state =", TIME),
    Fault('a failed timer goes on', '_core.engines.daemons.companions:Companion._judge',
          "if self.state.success:", "if self.state.finished:", TIME),
    Fault('a timer keeps the attempts of its former call',
          '_core.engines.daemons.timers:Timer._repeat', "self.state = None", "pass", TIME),
    Fault('an ended daemon is chosen again', '_core.engines.daemons.companions:Companions.select',
          "handler.key not in self._done and", "", DAEMON),

    # Sync handlers.
    Fault('a waiting thread is not told to stop', '_core.intents.stopping:DaemonStopper.set',
          "self._sync_event.set()", "pass", LEAVE),
    Fault('a thread that begins to wait is not told that it has to stop',
          '_core.intents.stopping:DaemonStopper.sync_event',
          "self._sync_event.set()", "pass", LEAVE),
    Fault('threads have no context', '_core.actions.invocation:_invoke_in_thread',
          "executor.submit(context.run, _call,", "executor.submit(_call,", CONTEXT),
    Fault('nobody waits for the thread of a cancelled call',
          '_core.actions.invocation:_invoke_in_thread',
          "if running.cancel():", "if running.cancel() or True:", LEAVE),
    Fault('a cancelled call gets a thread', '_core.actions.invocation:_invoke_in_thread',
          "if running.cancel():", "if not running.running():", LEAVE),
    Fault('daemons occupy the threads of handlers',
          '_core.engines.daemons.daemons:Daemon._executor',
          "self.spawner.threads if has_own else None", "None", SEEN),

    Fault('admission handlers run in the event loop', '_core.actions.invocation:invoke',
          "return await _invoke_in_thread(handler, kwargs, executor, call)",
          "return handler.fn(**kwargs) if type(handler).__name__ == 'WebhookHandler' else (\n"
          "            await _invoke_in_thread(handler, kwargs, executor, call))", THREAD),

    # Limits.
    Fault('the time of a handler runs while others are called',
          '_core.actions.progression:HandlerState.begun',
          "if not self.is_new or", "if True or", TIME),
    Fault('the timeout of a sync handler is ignored', '_core.actions.execution:attempt',
          "left = None if handler.timeout is None else",
          "left = None if handler.timeout is None or not handler.is_async else", TIME),
    Fault('a timeout replaces the outcome of a sync handler', '_core.actions.execution:attempt',
          "if left is not None and handler.is_async:", "if left is not None:", RETURN),

    # Older states after a restart.
    Fault('newer records of the previous process are not noticed',
          '_core.path.saving:Saver.judge',
          "item.cycle is None or item.is_confirmed", "True", STALE, is_stale=True),
    Fault('newer records of the previous process are written over',
          '_core.path.saving:Saver._is_doubtful',
          "not self.item.is_confirmed or", "", STALE, is_stale=True),
    Fault('a call for an outdated state counts for the newest one',
          '_core.path.saving:Saver.begin_anew',
          "if seen is not None and seen != newest}", "if False}", STALE, is_stale=True),
    Fault('newer records of an earlier process count as its resuming',
          '_core.path.saving:Saver.begin_anew',
          "initial=self.item.initial,", "", RESUME, is_stale=True),
    Fault('a handler is called again in a state to which the object has returned',
          '_core.path.handling:Handling.look',
          "cycle = cycle.regain(self.view.essence, self._recall)", "pass", STALE, is_stale=True),
    Fault('a call for an outdated state is forgotten at an exit',
          '_core.path.turns:Processor.save',
          "saver.give_way(e)", "item.proceed(None)", STALE, is_stale=True),
    Fault('an own PATCH without a response is taken for one of others',
          '_core.path.saving:Saver._judge_met',
          ", made=self.item.unconfirmed", "", ONCE, is_stale=True),
    Fault('a refused write shows the newest state',
          '_core.path.objects:Item.attempting', "self.unconfirmed = former",
          "self.is_confirmed = True", STALE, is_stale=True),
    Fault('what is prepared for an older state is taken for a newer one',
          '_core.path.handling:Handling.discard', "self.item.proceed(None)", "pass",
          STALE, is_stale=True),
    Fault('the response to a timer counts as the one to the cycle',
          '_core.path.objects:Item.accept', "if self.cycle is None:", "if True:", STALE,
          is_stale=True),
    Fault('an old list is trusted for a release', '_core.actions.application:exchange',
          "if e.message == FAILED_TEST:",
          "if e.message == FAILED_TEST:\n"
          "            return await target.send(raw, ops, subresource=subresource), True\n"
          "        if False:", STALE, is_stale=True),

    # Owned resources.
    Fault('changed children are left', '_core.engines.reconciling.planning:plan',
          "if child is None or not (", "if child is None and not (", LEVEL),
    Fault('unwanted children are left', '_core.engines.reconciling.planning:plan',
          "if prune:", "if False:", LEVEL),

    # Peering.
    Fault('a stronger peer is ignored', '_core.engines.peering.judging:judge',
          "sighting.peer.priority >= priority", "sighting.peer.priority > priority + 100", PEER),
    Fault('a dead peer is trusted for ever', '_core.engines.peering.judging:judge',
          "if sighting.until > now and", "if", PEER),
    Fault('nobody waits for a peer that yields',
          '_core.engines.peering.judging:get_yielding_end',
          "return max((end for end in ends if end > now), default=None)", "return None", PEER),

    # Admission.
    Fault('a refusal is lost', '_core.engines.admission.answers:answer',
          "'allowed': failure is None}", "'allowed': True}", ADMIT),
    Fault('a mutation is lost', '_core.engines.admission.answers:answer',
          "payload['patch'] = encode(changes)", "pass", ADMIT),
    Fault('a dry run is not shown as such', '_core.engines.admission.questions:parse',
          "dryrun=bool(dryrun),", "dryrun=False,", ADMIT),
    Fault('objects are not reviewed while the operator is down',
          '_core.engines.admission.webhooks:build_configuration',
          "'Ignore' if webhook.sample.ignore_failures else 'Fail'", "'Ignore'", ADMIT),
    Fault('refused configurations of webhooks are not written again',
          '_core.engines.admission.configurations:Manager.run',
          "pause = streak.fail(e)", "streak.fail(e)", ADMIT),
    Fault('webhooks are left at exit', '_core.reactor.admitting:Admission.stop',
          "await self._manager.clean(self._describe(persistent=True) or {})", "pass", WEBHOOKS),
    Fault('persistent webhooks are removed', '_core.reactor.admitting:Admission._describe',
          "webhook.sample.persistent or not persistent", "not persistent", WEBHOOKS),
    Fault('webhooks are not served until all is written',
          '_core.reactor.operating:Operator._clean_up',
          "    try:\n        try:\n            self.switch.stop(deadline)",
          "    await self._admission.stop(deadline)\n    try:\n        try:\n"
          "            self.switch.stop(deadline)", LEAVE),

    # Pauses.
    Fault('a pause is not noticed between two handlers', '_core.path.handling:Handling._find_pause',
          "self.saver.raw if pending is None else pending", "self.view.raw", PAUSE, is_paused=True),
    Fault('nothing wakes up the object at the end of its pause',
          '_core.path.handling:Handling.rest',
          "self._alarms.sleep(self.item, until)", "pass", SEEN, is_paused=True),
    Fault('a paused object gets no finalizer', '_core.actions.decisions:_pause',
          "if is_needed and", "if False and", HELD, is_paused=True),
    Fault('a pause counts as a change', '_core.actions.essences:strip',
          "if key.startswith(OWN_PREFIX) or key == annotation:", "if False:", ONCE, is_paused=True),
    Fault('a deletion does not wait for the end of the pause', '_core.intents.pauses:find',
          "pause.allows_deletion and", "", PAUSE, is_paused=True),
    Fault('timers go on in a pause', '_core.engines.daemons.timers:Timer.begin',
          "if self._is_paused:", "if False:", PAUSE, is_paused=True),
    Fault('daemons are not stopped by a pause', '_core.engines.daemons.companions:Companion.pause',
          "self.stop(reason)", "pass", PAUSE, is_paused=True),
    Fault('reconcilers go on in a pause', '_core.path.turns:Processor._run_reconcilers',
          "self.env.find_pause(item.inbox.pending or newest), False", "None, False", PAUSE,
          is_paused=True),

    # Leadership.
    Fault('a Lease is taken before it has expired', '_core.engines.leadership:Candidacy._elect',
          "if self._seen.holder and self._is_valid and not self._is_own:", "if False:", LEAD),
    Fault('an expired Lease is never taken', '_core.engines.leadership:Candidacy._elect',
          "if self._seen.holder and self._is_valid and", "if self._seen.holder and", LEAD),
    Fault('a leader that has lost its Lease goes on',
          '_core.reactor.roles.leadership:Leadership.confirm',
          "if self._term is not None and self._tenure.term != self._term:", "if False:",
          LEAD),
    Fault('a new leader does not take over',
          '_core.reactor.roles.leadership:Leadership._take_over',
          "part.take_over()", "pass", LEAD),
    Fault('writes go on after the loss of the Lease',
          '_core.reactor.roles.leadership:Leadership.verify',
          "if term is None or term != self._term or term != self._tenure.term:",
          "if False:", LEAD),

    # Sharding.
    Fault('a shard is given away before its work has ended',
          '_core.reactor.roles.sharding:Sharding._release',
          "await item.release(self._env.settings.sharding.handover_timeout)",
          "asyncio.get_running_loop().create_task(item.release("
          "self._env.settings.sharding.handover_timeout))", SHARD, is_sharded=True),
    Fault('the objects of a gained shard are not listed',
          '_core.reactor.roles.divisions:Distributor.open_for',
          "self.is_unlisted = True", "pass", SEEN, is_sharded=True),
)
