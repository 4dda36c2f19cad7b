/* A client in C, from docs/reference/protocol.md alone: libzmq and jansson.
 *
 *   client ENDPOINTS_JSON STREAM DROP TEXT
 *
 * Joins without a hole, throws the DROPth new batch of STREAM away, repairs the hole by `replay`,
 * sends the command `mark` with TEXT, and prints every line of STREAM in order, each once, until it has printed
 * the event that the mark became (STREAM `life`) or 100 lines (another STREAM). Exit code 0 if all went well.
 */
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#define WANTED 100

static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

/* A frame as a string of its own; *more says whether another one follows. */
static char *receive(void *socket, int *more) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    if (zmq_msg_recv(&message, socket, 0) < 0) die("receive: %s", zmq_strerror(zmq_errno()));
    size_t size = zmq_msg_size(&message);
    char *text = malloc(size + 1);
    memcpy(text, zmq_msg_data(&message), size);
    text[size] = '\0';
    *more = zmq_msg_more(&message);
    zmq_msg_close(&message);
    return text;
}

static void *open_socket(void *context, int kind, json_t *endpoints, const char *name) {
    void *socket = zmq_socket(context, kind);
    int linger = 0, timeout = 10000;
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &timeout, sizeof timeout);
    if (zmq_connect(socket, json_string_value(json_object_get(endpoints, name))) != 0)
        die("%s: %s", name, zmq_strerror(zmq_errno()));
    return socket;
}

/* One request; returns `result` and puts the second frame, where there is one, into *lines. */
static json_t *ask(void *socket, const char *method, json_t *params, const char *boot, char **lines) {
    static int count = 0;
    char id[64];
    snprintf(id, sizeof id, "c-%ld-%d", (long)getpid(), count++);
    json_t *meta = json_pack("{s:i, s:s, s:{}}", "v", 1, "client", "client.c", "expect");
    if (boot != NULL) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        json_object_set_new(json_object_get(meta, "expect"), "boot", json_string(boot));
        json_object_set_new(meta, "deadline", json_integer(now.tv_sec * 1000000LL + now.tv_nsec / 1000 + 5000000));
    }
    json_t *request = json_pack("{s:s, s:s, s:s, s:o, s:o}", "jsonrpc", "2.0", "id", id, "method", method, "params",
                                params, "meta", meta);
    char *body = json_dumps(request, JSON_COMPACT);
    if (zmq_send(socket, body, strlen(body), 0) < 0) die("%s: %s", method, zmq_strerror(zmq_errno()));
    free(body);
    json_decref(request);

    int more = 0;
    char *answer = receive(socket, &more);
    *lines = more ? receive(socket, &more) : NULL;
    json_t *reply = json_loads(answer, 0, NULL);
    free(answer);
    if (reply == NULL) die("%s: the reply is not JSON", method);
    if (strcmp(json_string_value(json_object_get(reply, "id")), id) != 0) die("%s: another request's reply", method);
    json_t *error = json_object_get(reply, "error");
    if (error != NULL) die("%s: %s", method, json_string_value(json_object_get(error, "message")));
    json_t *result = json_incref(json_object_get(reply, "result"));
    json_decref(reply);
    return result;
}

static const char *marked; /* the text of the mark */
static json_int_t last = 0; /* the newest number printed */
static int printed = 0, done = 0;

/* Lines `first`, `first` + 1, ... in order; what was printed before is passed over. */
static void deliver(json_int_t first, char *lines) {
    for (char *line = strtok(lines, "\n"); line != NULL; line = strtok(NULL, "\n"), first++) {
        if (first <= last) continue;
        if (first != last + 1) die("a hole before %lld", (long long)first);
        json_t *event = json_loads(line, 0, NULL);
        if (event == NULL) die("a line is not JSON: %s", line);
        if (json_integer_value(json_object_get(event, "seq")) != first) die("%lld has another number", (long long)first);
        const char *type = json_string_value(json_object_get(event, "type"));
        json_t *text = json_object_get(json_object_get(event, "data"), "text");
        puts(line);
        last = first;
        printed++;
        if (strcmp(type, "mark") == 0 && strcmp(json_string_value(text), marked) == 0) done = 1;
        json_decref(event);
    }
}

static void repair(void *qry, const char *stream, const char *boot, json_int_t until) {
    while (last < until) {
        char *lines = NULL;
        json_int_t first = last + 1;
        json_t *params = json_pack("{s:s, s:I, s:I}", "stream", stream, "first", first, "last", until);
        json_t *result = ask(qry, "replay", params, boot, &lines);
        if (json_integer_value(json_object_get(result, "n")) == 0) die("nothing held of %lld", (long long)first);
        fprintf(stderr, "repaired %lld..\n", (long long)first);
        deliver(first, lines);
        free(lines);
        json_decref(result);
    }
}

int main(int argc, char **argv) {
    if (argc != 5) die("usage: client ENDPOINTS_JSON STREAM DROP TEXT");
    const char *stream = argv[2];
    int drop = atoi(argv[3]), batches = 0;
    marked = argv[4];
    json_t *endpoints = json_loads(argv[1], 0, NULL);
    if (endpoints == NULL) die("no endpoints: %s", argv[1]);
    char topic[64];
    snprintf(topic, sizeof topic, "1/%s", stream);

    void *context = zmq_ctx_new();
    void *ev = open_socket(context, ZMQ_SUB, endpoints, "ev");
    void *qry = open_socket(context, ZMQ_REQ, endpoints, "qry");
    void *ctl = open_socket(context, ZMQ_REQ, endpoints, "ctl");

    /* 1. Subscribe, heartbeats last; the first frame of theirs shows that all is in force. What comes before it
     *    is behind the snapshot's numbers and may be dropped: the snapshot is taken after it. */
    zmq_setsockopt(ev, ZMQ_SUBSCRIBE, topic, strlen(topic));
    zmq_setsockopt(ev, ZMQ_SUBSCRIBE, "1/hb", 4);
    for (int in_force = 0; !in_force;) {
        int more = 1;
        for (int frame = 0; more; frame++) {
            char *text = receive(ev, &more);
            if (frame == 0 && strcmp(text, "1/hb") == 0) in_force = 1;
            free(text);
        }
    }
    /* 2. and 3. */
    char *lines = NULL;
    json_t *hello = ask(qry, "hello", json_object(), NULL, &lines);
    if (json_integer_value(json_object_get(hello, "protocol")) != 1) die("another protocol");
    char *boot = strdup(json_string_value(json_object_get(hello, "boot")));
    json_t *snapshot = ask(qry, "snapshot", json_pack("{s:[s]}", "streams", stream), boot, &lines);
    last = json_integer_value(json_object_get(json_object_get(snapshot, "seq"), stream));
    free(lines);

    json_t *accepted = ask(ctl, "mark", json_pack("{s:s}", "text", marked), boot, &lines);
    if (strcmp(json_string_value(json_object_get(accepted, "state")), "done") != 0) die("the mark is not done");

    /* 4. and 5. */
    int life = strcmp(stream, "life") == 0;
    while (life ? !done : printed < WANTED) {
        int more = 0;
        char *name = receive(ev, &more);
        char *head = more ? receive(ev, &more) : NULL;
        char *body = more ? receive(ev, &more) : NULL;
        json_t *header = head != NULL ? json_loads(head, 0, NULL) : NULL;
        if (strcmp(name, "1/hb") == 0 && header != NULL) {
            repair(qry, stream, boot, json_integer_value(json_object_get(json_object_get(header, "last"), stream)));
        } else if (body != NULL) {
            json_int_t first = json_integer_value(json_object_get(header, "first"));
            int fresh = json_integer_value(json_object_get(header, "last")) > last;
            if (!fresh || ++batches != drop) {
                repair(qry, stream, boot, first - 1);
                deliver(first, body);
            }
        }
        json_decref(header);
        free(name);
        free(head);
        free(body);
    }
    zmq_close(ev);
    zmq_close(qry);
    zmq_close(ctl);
    zmq_ctx_term(context);
    return 0;
}
