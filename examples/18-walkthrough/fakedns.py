"""A DNS of another company, with its records in memory."""
import itertools

from aiohttp import web

records = {}
ids = map(str, itertools.count(1))
routes = web.RouteTableDef()


@routes.get('/records')
async def find(request):
    wanted = request.query.items()
    return web.json_response({'items': [
        record for record in records.values() if wanted <= record.items()]})


@routes.post('/records')
async def create(request):
    record = {'id': next(ids), **await request.json()}
    records[record['id']] = record
    return web.json_response(record, status=201)


@routes.get('/records/{id}')
async def read(request):
    return web.json_response(get_record(request))


@routes.patch('/records/{id}')
async def change(request):
    record = get_record(request)
    record.update(await request.json())
    return web.json_response(record)


@routes.delete('/records/{id}')
async def delete(request):
    del records[get_record(request)['id']]
    return web.Response(status=204)


def get_record(request):
    try:
        return records[request.match_info['id']]
    except KeyError:
        raise web.HTTPNotFound() from None


if __name__ == '__main__':
    app = web.Application()
    app.add_routes(routes)
    web.run_app(app, host='127.0.0.1', port=8053)
