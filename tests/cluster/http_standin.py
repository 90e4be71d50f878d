#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""http_standin.py <routes.json> <log file> [<certificate.pem> <key file>]: the APIs of platforms, for tests.

Prints its port, serves until standard input ends. routes.json is a list; the first route whose fields
match a request answers it:
  host        where to listen (only in the first route): "127.0.0.1" or "::1"
  method, path, query (an object; all of it must be in the request), body (JSON), header (an object)
  token       without "Authorization: Bearer <token>", the answer is 401
  times       the route answers this many requests, then others do
  status, json or text, size (bytes of filler), redirect (a URL)
  delay       seconds before the answer;  drip: seconds after each byte;  hang: never answers
  cut         true: the connection ends in the middle of the answer
Each request is a line of JSON in the log.
"""
import json
import socket
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

ROUTES = json.load(open(sys.argv[1], encoding="utf-8"))
LOG = open(sys.argv[2], "a", encoding="utf-8")
LOCK = threading.Lock()
DONE = threading.Event()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def find_route(self, body):
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        with LOCK:
            LOG.write(json.dumps({"method": self.command, "path": url.path, "query": query, "body": body,
                                  "authorization": self.headers.get("Authorization", ""),
                                  "connection": self.client_address[1]}) + "\n")
            LOG.flush()
            for route in ROUTES:
                if (route.get("method", self.command) == self.command and route.get("path", url.path) == url.path
                        and route.get("query", {}).items() <= query.items()
                        and ("body" not in route or json.loads(body or "null") == route["body"])
                        and all(self.headers.get(name) == value for name, value in route.get("header", {}).items())
                        and route.get("times", 1) > 0):
                    if "times" in route:
                        route["times"] -= 1
                    return route
        return {"status": 404, "text": f"no route for {self.command} {self.path}"}

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        route = self.find_route(body)
        if "token" in route and self.headers.get("Authorization") != f"Bearer {route['token']}":
            route = {"status": 401, "json": {"kind": "Status", "message": "Unauthorized", "code": 401}}
        if "hang" in route:
            DONE.wait()
            return
        time.sleep(route.get("delay", 0))
        data = json.dumps(route["json"]) if "json" in route else route.get("text", "x" * route.get("size", 0))
        data = data.encode()
        self.send_response(302 if "redirect" in route else route.get("status", 200))
        if "redirect" in route:
            self.send_header("Location", route["redirect"])
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        try:
            if "cut" in route:
                self.wfile.write(data[: len(data) // 2])
                self.close_connection = True
            elif "drip" in route:
                for byte in data:
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    if DONE.wait(route["drip"]):
                        return
            else:
                self.wfile.write(data)
        except OSError:
            self.close_connection = True  # The client has given up, as some tests want.

    do_GET = do_POST = answer


class Server(ThreadingHTTPServer):
    daemon_threads = True
    address_family = socket.AF_INET6 if ":" in ROUTES[0].get("host", "") else socket.AF_INET

    def finish_request(self, request, client_address):
        try:
            if len(sys.argv) > 3:
                request = CONTEXT.wrap_socket(request, server_side=True)  # here, in the request's own thread
            super().finish_request(request, client_address)
        except OSError:
            pass  # The client does not trust the certificate.


if len(sys.argv) > 3:
    CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    CONTEXT.load_cert_chain(sys.argv[3], sys.argv[4])
server = Server((ROUTES[0].get("host", "127.0.0.1"), 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.read()
DONE.set()
