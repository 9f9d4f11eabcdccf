"""The description of the admin API: every route of the server, and every answer as it says."""

import contextlib
import json
import pathlib
import re

from harness import *
from harness.http_unix import UnixConnection

PUBLISHED = pathlib.Path(__file__).parents[3] / "docs" / "openapi.json"


class Api:
    """Asks a daemon, and judges requests and answers by the published document."""

    def __init__(self, daemon):
        try:
            import jsonschema
        except ImportError:
            skip("python3-jsonschema is missing (make deps)")
        self.jsonschema = jsonschema
        self.daemon = daemon
        self.document = json.loads(PUBLISHED.read_text())
        # Fields that are not described are errors of the server.
        self.strict = closed(self.document)
        self.used = set()

    def route(self, method, target):
        """The path in the document that a target belongs to, and what is said of the method."""
        found = []
        for path, methods in self.document["paths"].items():
            pattern = re.sub(r"\{\w+\}", "[^/]+", path)
            if re.fullmatch(pattern, target.split("?")[0]) and method.lower() in methods:
                found.append((path, methods[method.lower()]))
        # A path without a name in it comes first.
        return min(found, key=lambda one: one[0].count("{"), default=(None, None))

    def judge(self, value, schema, what, document=None):
        """Fails unless a value is as a schema says."""
        whole = {**schema, "components": (document or self.strict)["components"]}
        errors = list(self.jsonschema.Draft202012Validator(whole).iter_errors(value))
        said = [f"{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}" for error in errors[:3]]
        check(not errors, f"{what}: {said}")

    def ask(self, method, target, body=None, expect=(200, 202), accept=None, undescribed=False):
        """Sends a request; gives the answer, which is as described."""
        what = f"{method} {target}"
        path, route = self.route(method, target)
        check(route or undescribed, f"{what} is not described")
        connection = UnixConnection(self.daemon.socket)
        with contextlib.closing(connection):
            text = None if body is None else json.dumps(body)
            connection.request(method, target, text, {"Accept": accept} if accept else {})
            answer = connection.getresponse()
            status, media_type, data = answer.status, answer.getheader("Content-Type"), answer.read()
        check(status in expect, f"{what}: status {status}: {data[:300]}")
        if not route:
            return json.loads(data)
        described = route["responses"].get(str(status))
        check(described, f"{what}: status {status} is not described")
        if "$ref" in described:
            described = self.document["components"]["responses"][described["$ref"].rsplit("/", 1)[1]]
        schemas = described["content"]
        check(media_type.split(";")[0] in schemas, f"{what}: the type {media_type} is not described")
        if status < 300:
            self.used.add((method, path))
            if body is not None and "requestBody" in route:
                schema = route["requestBody"]["content"]["application/json"]["schema"]
                self.judge(body, schema, f"the body of {what}", self.document)
        if "json" not in media_type:
            return data.decode()
        value = json.loads(data)
        schema = closed(schemas[media_type]["schema"])
        self.judge(value, schema, f"the answer to {what}")
        return value

    def end(self, operation):
        """Follows an operation to its end."""

        def state():
            return self.ask("GET", f"/v1/operations/{operation['id']}")["state"] != "running"

        wait_for(state, "the operation ends")
        ended = self.ask("GET", f"/v1/operations/{operation['id']}")
        check_equal(ended["state"], "done", f"{ended['verb']}: {ended.get('error')}")


def closed(schema):
    """A schema that takes only the properties that it names."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {name: closed(part) for name, part in schema.items()}
    if isinstance(copy.get("properties"), dict) and copy.get("type") == "object":
        copy.setdefault("additionalProperties", False)
    return copy


def volume(box, daemon, name):
    origin = Disk(box, f"origin-{name}", 64 * MIB)
    return {
        "name": name, "cache": box.file(f"cache-{name}", 64 * MIB), "origin": origin.name, "force": True, "alignment": 512,
        "settings": {"ram": "8M", "dirty_age": "1s", "mode": "wb", "dirty_high": 55, "ordered": True},
    }, origin  # fmt: skip


@test
def the_document_is_served_and_sound(box):
    daemon = box.daemon()
    api = Api(daemon)
    check_equal(api.ask("GET", "/v1/openapi.json"), api.document, "the document that is served")
    check_equal(api.document["openapi"], "3.1.0", "the version")
    for name, schema in api.document["components"]["schemas"].items():
        api.jsonschema.Draft202012Validator.check_schema(schema)
        check(schema.get("description") or schema.get("type") or "properties" in schema, f"{name} says nothing")


@test
def what_is_not_described_is_found(box):
    api = Api(box.daemon())
    answer = api.ask("GET", "/v1/events")
    schema = api.strict["paths"]["/v1/events"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    api.judge(answer, schema, "the answer as it is")
    event = answer["events"][0]
    for wrong in ({**event, "colour": "red"}, {**event, "kind": "explosion"}, {"id": 1}, {**event, "id": "7"}):
        try:
            api.judge({"events": [wrong]}, schema, "a wrong answer")
        except Failure:
            continue
        raise Failure(f"{wrong} is accepted")


@test
def every_route_answers_as_described(box):
    daemon = box.daemon()
    api = Api(daemon)
    body, origin = volume(box, daemon, "v")
    api.end(api.ask("POST", "/v1/volumes", body))
    client = Client(daemon.uri("v"))
    client.write_blocks(0, 64)
    client.read(MIB)
    reports = [
        "/v1/daemon", "/v1/memory", "/v1/events", "/v1/events?volume=v&limit=3", "/v1/log", "/v1/knobs", "/v1/profiles",
        "/v1/volumes", "/v1/volumes/v", "/v1/volumes/v/curve", "/v1/volumes/v/curve?sizes=64M,1G&ram=1M", "/v1/volumes/v/lost",
        "/v1/volumes/v/pins", "/v1/volumes/v/trace?seconds=1", "/v1/reports", "/v1/reports/v", "/v1/operations",
        "/metrics", "/v1/openapi.json",
    ]  # fmt: skip
    for target in reports:
        api.ask("GET", target)
    api.ask("GET", "/metrics", accept="text/plain")
    ranges = {"ranges": [{"offset": 0, "len": MIB}]}
    for verb, sent in (
        ("flush", None), ("set", {"settings": {"dirty_high": "60%"}}), ("pin", ranges), ("unpin", {}), ("evict", ranges),
        ("prefetch", ranges), ("drop", {"ram": True}), ("drop", None), ("stop", {"force": True}), ("start", {"force": False}),
    ):  # fmt: skip
        begun = api.ask("POST", f"/v1/volumes/v/{verb}", sent)
        api.end(begun)
        api.ask("POST", f"/v1/operations/{begun['id']}/cancel", {})
    api.ask("POST", "/v1/memory", {"limit_bytes": 700 * MIB})
    # A volume that is degraded, and one that is stopped, have all that others have.
    client = Client(daemon.uri("v"))
    origin.faults("fail")
    attempt(client.read, 32 * MIB)
    wait_for(lambda: api.ask("GET", "/v1/volumes/v")["state"] == "degraded", "it is degraded")
    for target in reports:
        api.ask("GET", target)

    def is_told(kind):
        return kind in {event["kind"] for event in api.ask("GET", "/v1/events")["events"]}

    wait_for(lambda: is_told("degraded"), "it is told that the volume is degraded")
    origin.heal()

    def has_recovered():
        # It recovers with a read that succeeds.
        attempt(client.read, 33 * MIB)
        return is_told("recovered")

    wait_for(has_recovered, "it is told that the volume has recovered")
    api.end(api.ask("POST", "/v1/volumes/v/stop", {"force": True}))
    api.ask("GET", "/v1/volumes/v")
    api.end(api.ask("POST", "/v1/volumes/v/start", {}))
    wait_for(lambda: api.ask("GET", "/v1/daemon")["ready"], "it is ready")
    api.ask("POST", "/v1/daemon/hand-over", {"program": daemon.binary})
    wait_for(lambda: hand_overs(daemon) == 1, "it has handed over")
    wait_for(lambda: api.ask("GET", "/v1/daemon")["ready"], "it is ready")
    api.end(api.ask("POST", "/v1/volumes/v/delete", {"discard_dirty": True, "force": True}))
    routes = {(method.upper(), path) for path, methods in api.document["paths"].items() for method in methods}
    check_equal(routes - api.used, set(), "routes that were not asked")


def hand_overs(daemon):
    """How often the program was replaced; nothing while it is."""
    try:
        connection = UnixConnection(daemon.socket)
        with contextlib.closing(connection):
            connection.request("GET", "/v1/daemon")
            return json.loads(connection.getresponse().read())["hand_overs"]
    except (OSError, ValueError):
        return None


@test
def refusals_are_as_described(box):
    daemon = box.daemon()
    api = Api(daemon)
    for method, target, body, status in (
        ("GET", "/v1/volumes/nobody", None, 404),
        ("GET", "/v1/volumes/nobody/curve", None, 404),
        ("GET", "/v1/operations/x", None, 400),
        ("GET", "/v1/events?kind=none", None, 400),
        ("POST", "/v1/volumes", {"name": "v"}, 400),
        ("POST", "/v1/volumes/nobody/flush", None, 404),
        ("POST", "/v1/memory", {"limit_bytes": 1}, 400),
        ("POST", "/v1/daemon/hand-over", {"program": "/bin/true"}, 409),
    ):
        api.ask(method, target, body, expect=(status,))
    # No other method is on any path.
    for path, methods in api.document["paths"].items():
        for method in {"get", "post", "put", "delete", "patch"} - set(methods):
            target = path.replace("{name}", "v").replace("{id}", "1")
            refused = api.ask(method.upper(), target, expect=(404,), undescribed=True)
            check_equal(refused["error"]["kind"], "not_found", f"{method} {target}")


main()
