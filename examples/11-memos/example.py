"""
Memos: data in memory, for the whole operator and for each object. The operator posts all edits to a
chat. The operator opens the connection at startup, closes it at shutdown, and shares it with the
memos of all objects. The memo of each object counts the edits of the object. The count disappears
with the object, or when the operator ends. Type
``CHAT=https://... kopf run -A examples/11-memos/example.py`` with the address of a webhook of your
chat, then ``kubectl apply -f examples/obj.yaml``; change the object a few times, and see the
messages in the chat. ``kopf.testing.explore`` does not try its faults, as the chat is no object in
the cluster. The example would not survive ``crash``: if the operator is killed after it has posted
a message, it posts the message again, and counts from 1 again.
"""
import os

import aiohttp
import kopf


@kopf.on.startup()
async def enter_chat(memo, **_):
    memo.chat = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10), raise_for_status=True)


@kopf.on.cleanup()
async def leave_chat(memo, **_):
    await memo.chat.close()


@kopf.on.update('kopfexamples', retries=3, backoff=5)
async def tell(name, memo, **_):
    edits = memo.get('edits', 0) + 1
    text = f"{name} is edited; edits so far: {edits}."
    async with memo.chat.post(os.environ['CHAT'], json={'text': text}):
        memo.edits = edits  # only now: an edit is not counted twice if the chat is tried again
