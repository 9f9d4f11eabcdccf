"""The page of --web: it is live, changes nothing, and is no way in for pages of other sites."""

import contextlib
import http.client
import json
import os
import re
import threading

from harness import *
from harness.browser import Browser, find
from harness.wire import free_port

PATIENCE = 60
BLOCK = 4096


def served(box):
    port = free_port()
    daemon = Daemon(box)
    daemon.start("--web", f"127.0.0.1:{port}")
    return daemon, port


def ask(port, target="/", method="GET", headers=None):
    """Status, headers and body of an answer."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request(method, target, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()


def stream(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", "/live")
    return connection, connection.getresponse()


def messages(answer):
    for line in answer:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


@test
def files_come_with_a_policy_and_need_nothing_from_elsewhere(box):
    _, port = served(box)
    names, found = ["/"], {}
    while names:
        name = names.pop()
        status, headers, text = ask(port, name)
        check_equal(status, 200, f"the status of {name}")
        policy = headers["Content-Security-Policy"]
        for part in "default-src 'none'", "script-src 'self'", "frame-ancestors 'none'":
            check(part in policy, f"{name} has the policy {policy}")
        check_equal(headers["X-Content-Type-Options"], "nosniff", f"the type of {name}")
        check_equal(headers["Referrer-Policy"], "no-referrer", f"the referrer of {name}")
        found[name] = text
        used = re.findall(r'(?:src|href)="(/[^"]+)"', text) + re.findall(r'from "\.(/[^"]+)"', text)
        names += [used for used in used if used not in found and used not in names]
        foreign = re.findall(r"https?://(?!www\.w3\.org/2000/svg)\S+", text)
        check_equal(foreign, [], f"foreign addresses in {name}")
    check(len(found) >= 5, f"the files are {list(found)}")


@test
def other_sites_and_other_methods_are_refused(box):
    daemon, port = served(box)
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB))
    own = f"127.0.0.1:{port}"
    for headers, expected in (
        ({"Host": "localhost"}, 200),
        ({"Host": f"[::1]:{port}"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": f"evil.example:{port}"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": f"http://{own}"}, 200),
    ):
        for target in "/", "/v1/reports", "/v1/volumes/v/curve":
            status, answered, text = ask(port, target, headers=headers)
            check_equal(status, expected, f"{target} with {headers}")
            check("Content-Security-Policy" in answered, "the policy")
            check(status == 200 or json.loads(text)["error"]["message"], "no message")
    for method in "POST", "PUT", "DELETE", "OPTIONS", "PATCH":
        for target in "/", "/v1/volumes", "/v1/volumes/v/stop", "/v1/reports":
            check_equal(ask(port, target, method)[0], 405, f"{method} {target}")
    check_equal(ask(port, "/", "HEAD")[2], "", "the body of HEAD")
    for target in "/v1/log", "/v1/volumes", "/v1/operations", "/metrics", "/../etc/passwd", "/v1/volumes/v":
        check_equal(ask(port, target)[0], 404, target)
    check_equal(daemon.show("v")["state"], "running", "the state")


@test
def the_stream_has_what_top_has(box):
    daemon, port = served(box)
    client = connect(daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB)))
    connection, answer = stream(port)
    with contextlib.closing(connection):
        check_equal(answer.getheader("Content-Type"), "text/event-stream", "the type")
        told = messages(answer)
        check_equal(next(told)["reports"][0]["name"], "v", "the volume")
        for block in range(100):
            client.pread(BLOCK, block * BLOCK)
        for message in told:
            volume = message["interval"]["volumes"][0]
            if message["reports"][0]["served"]["reads"]["total"] == 100:
                break
        check(volume["iops"] > 0 and volume["hit_ratio"] == 0, f"the last interval is {volume}")
        check_equal(message["reports"][0]["why"]["miss"]["cold"], 100, "the misses")


@test
def streams_are_bounded_and_places_become_free(box):
    _, port = served(box)
    places = [stream(port) for _ in range(16)]
    check_equal([answer.status for _, answer in places], [200] * 16, "the states")
    status, _, text = ask(port, "/live")
    check(status >= 400 and "16 browsers" in text, f"one more gets {status} {text}")
    check_equal(ask(port)[0], 200, "the page beside them")
    for connection, answer in places:
        answer.close()
        connection.close()

    def is_free():
        connection, answer = stream(port)
        with contextlib.closing(connection):
            return answer.status == 200

    wait_for(is_free, "places of browsers that left are free")


@test
def the_history_survives_a_restart_and_a_torn_file(box):
    daemon, port = served(box)
    daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB))

    def samples():
        return json.loads(ask(port, "/history")[2])["samples"]

    wait_for(lambda: len(samples()) >= 1, "the first sample", 60)
    before = samples()
    daemon.terminate()
    path = os.path.join(daemon.state, "history.jsonl")
    with open(path, "a") as file:
        file.write('{"time":12,"volu')
    daemon.start("--web", f"127.0.0.1:{port}")
    check_equal(samples()[: len(before)], before, "the samples of before")


@test
def a_browser_shows_the_numbers(box):
    if find() is None:
        skip("there is no chromium (Debian's package chromium)")
    daemon, port = served(box)
    client = connect(daemon.create("v", box.file("cache", 64 * MIB), box.file("origin", 16 * MIB)))
    ended = threading.Event()

    def load():
        number = 0
        while not ended.is_set():
            number += 1
            client.pread(BLOCK, number * number % 997 * BLOCK)
            if number % 5 == 0:
                client.pwrite(b"\x07" * BLOCK, number * 7 % 499 * BLOCK)
            ended.wait(0.001)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        browser = Browser(box, f"http://127.0.0.1:{port}/")
        text = "document.body.innerText"
        browser.look(1200, 1000, "light")
        wait_for(lambda: "Volume v" in (browser.value(text) or ""), "the volume is shown", PATIENCE)
        wait_for(lambda: browser.value("document.querySelectorAll('#heat rect').length") > 10, "the map", PATIENCE)
        wait_for(lambda: browser.value("document.querySelectorAll('#history svg').length") == 5, "the history", PATIENCE)
        wait_for(lambda: browser.value("document.querySelectorAll('#curve svg').length") == 1, "the curve", PATIENCE)
        iops = browser.value("document.querySelectorAll('.numbers dd')[1].textContent")
        check(int(iops.replace(",", "")) > 0, f"the IOPS are {iops}")
        shown = browser.value(text)
        for part in "running", "not seen lately", "daemon has started", "Live":
            check(part in shown, f"'{part}' is not in {shown}")
        check("dirty_high" in browser.value("document.getElementById('settings').textContent"), "no settings")
        folder = os.environ.get("FOREBAY_SCREENSHOTS", str(box.dir))
        for name, width, height, scheme in (
            ("web-light", 1100, 800, "light"), ("web-dark", 1100, 800, "dark"), ("web-narrow", 390, 844, "dark"),
        ):  # fmt: skip
            browser.look(width, height, scheme)
            wide = browser.value("document.documentElement.scrollWidth")
            check(wide <= width, f"the page is {wide} wide in a window of {width}")
            browser.screenshot(os.path.join(folder, f"{name}.png"))
        check_equal(browser.errors, [], "errors of the page")
    finally:
        ended.set()
        thread.join()


@test
def the_keyboard_reaches_everything(box):
    if find() is None:
        skip("there is no chromium (Debian's package chromium)")
    daemon, port = served(box)
    for name in "a", "b":
        daemon.create(name, box.file(f"cache-{name}", 64 * MIB), box.file(f"origin-{name}", 16 * MIB))
    browser = Browser(box, f"http://127.0.0.1:{port}/")
    focused = "document.activeElement"

    def tab_to(expected):
        browser.press("Tab")
        check_equal(browser.value(f"{focused}.id || {focused}.textContent"), expected, "what has the focus")
        outline = browser.value(f"getComputedStyle({focused}).outlineStyle")
        check(outline != "none", f"the focus on {expected} cannot be seen")

    wait_for(lambda: browser.value("document.querySelectorAll('article.volume').length") == 2, "the volumes", PATIENCE)
    tab_to("a")
    tab_to("b")
    browser.press("Enter")
    check_equal(browser.value("document.getElementById('details-title').textContent"), "Volume b", "what is shown")
    check_equal(browser.value(f"{focused}.getAttribute('aria-pressed')"), "true", "the button")
    # New numbers come each second, and leave the focus where it is.
    browser.value("window.changes = 0; new MutationObserver(() => window.changes++).observe(document.getElementById('volumes'), "
                  "{subtree: true, childList: true, characterData: true})")  # fmt: skip
    wait_for(lambda: browser.value("window.changes") > 2, "new numbers", PATIENCE)
    tab_to("kind")
    browser.press("ArrowDown")
    check_equal(browser.value("document.getElementById('kind').value"), "write", "the requests")
    tab_to("Settings")
    browser.press("Enter")
    check_equal(browser.value("document.querySelector('details').open"), True, "the settings are open")
    check_equal(browser.errors, [], "errors of the page")


main()
