// A client in Rust, from docs/reference/protocol.md alone: no library but the standard one, not even ZeroMQ.
//
//   client EV QRY CTL STREAM DROP TEXT          (paths of the Unix sockets)
//
// Joins without a hole, throws the DROPth new batch of STREAM away, repairs the hole by `replay`, sends the
// command `mark` with TEXT, and the same request once more; prints every line of STREAM in order, each once,
// until it has printed the event that the mark became (STREAM `life`) or 100 lines (another STREAM).
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
const WANTED: usize = 100;

#[derive(Debug, Clone, PartialEq)]
enum Json {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    fn parse(text: &str) -> Json {
        let mut parser = Parser { bytes: text.as_bytes(), at: 0 };
        let value = parser.value();
        assert!(parser.next_word().is_none(), "something behind a document");
        value
    }

    fn at(&self, path: &str) -> &Json {
        path.split('.').fold(self, |value, name| match value {
            Json::Object(fields) => fields.iter().find(|(key, _)| key == name).map_or(&Json::Null, |(_, v)| v),
            _ => &Json::Null,
        })
    }

    fn int(&self, path: &str) -> i64 {
        match self.at(path) {
            Json::Number(number) => *number as i64,
            other => panic!("{path} is {other:?}"),
        }
    }

    fn text(&self, path: &str) -> &str {
        match self.at(path) {
            Json::Text(text) => text,
            other => panic!("{path} is {other:?}"),
        }
    }
}

struct Parser<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn next_word(&mut self) -> Option<u8> {
        while self.at < self.bytes.len() && self.bytes[self.at].is_ascii_whitespace() {
            self.at += 1;
        }
        self.bytes.get(self.at).copied()
    }

    fn expect(&mut self, word: &str, value: Json) -> Json {
        assert!(self.bytes[self.at..].starts_with(word.as_bytes()), "no JSON at {}", self.at);
        self.at += word.len();
        value
    }

    fn is_next(&mut self, byte: u8) -> bool {
        let found = self.next_word() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self) -> Json {
        match self.next_word().expect("a value") {
            b'{' => {
                self.at += 1;
                let mut fields = Vec::new();
                while !self.is_next(b'}') {
                    let key = match self.value() {
                        Json::Text(key) => key,
                        other => panic!("a key is {other:?}"),
                    };
                    assert!(self.is_next(b':'));
                    fields.push((key, self.value()));
                    self.is_next(b',');
                }
                Json::Object(fields)
            }
            b'[' => {
                self.at += 1;
                let mut items = Vec::new();
                while !self.is_next(b']') {
                    items.push(self.value());
                    self.is_next(b',');
                }
                Json::List(items)
            }
            b'"' => Json::Text(self.string()),
            b't' => self.expect("true", Json::Bool(true)),
            b'f' => self.expect("false", Json::Bool(false)),
            b'n' => self.expect("null", Json::Null),
            _ => {
                let start = self.at;
                while self.at < self.bytes.len() && b"+-.eE0123456789".contains(&self.bytes[self.at]) {
                    self.at += 1;
                }
                let text = std::str::from_utf8(&self.bytes[start..self.at]).unwrap();
                Json::Number(text.parse().unwrap_or_else(|_| panic!("{text} is no number")))
            }
        }
    }

    fn string(&mut self) -> String {
        self.at += 1;
        let mut found = Vec::new();
        loop {
            let byte = self.bytes[self.at];
            self.at += 1;
            match byte {
                b'"' => return String::from_utf8(found).unwrap(),
                b'\\' => {
                    let escaped = self.bytes[self.at];
                    self.at += 1;
                    let character = match escaped {
                        b'n' => '\n',
                        b't' => '\t',
                        b'r' => '\r',
                        b'b' => '\u{8}',
                        b'f' => '\u{c}',
                        b'u' => self.unit(),
                        other => other as char,
                    };
                    found.extend(character.to_string().bytes());
                }
                _ => found.push(byte),
            }
        }
    }

    fn unit(&mut self) -> char {
        let mut take = || {
            let digits = std::str::from_utf8(&self.bytes[self.at..self.at + 4]).unwrap();
            self.at += 4;
            u32::from_str_radix(digits, 16).unwrap()
        };
        let first = take();
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first).unwrap();
        }
        self.at += 2; // the second half has its own \u
        let digits = std::str::from_utf8(&self.bytes[self.at..self.at + 4]).unwrap();
        self.at += 4;
        let second = u32::from_str_radix(digits, 16).unwrap();
        char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)).unwrap()
    }
}

/// One connection, as ZMTP 3.1 has it.
struct Socket {
    stream: UnixStream,
}

impl Socket {
    fn connect(path: &str, kind: &str) -> Socket {
        let mut stream = UnixStream::connect(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut greeting = vec![0u8; 64];
        greeting[0] = 0xff;
        greeting[9] = 0x7f;
        greeting[10] = 3;
        greeting[11] = 1;
        greeting[12..16].copy_from_slice(b"NULL");
        stream.write_all(&greeting).unwrap();
        let mut theirs = [0u8; 64];
        stream.read_exact(&mut theirs).unwrap();
        assert_eq!((theirs[0], theirs[9], theirs[10]), (0xff, 0x7f, 3), "not ZMTP 3");
        let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
        ready.extend((kind.len() as u32).to_be_bytes());
        ready.extend(kind.bytes());
        let mut socket = Socket { stream };
        socket.send(COMMAND, &ready);
        let (flags, body) = socket.frame();
        assert!(flags & COMMAND != 0 && body.starts_with(b"\x05READY"), "the handshake ends with READY");
        socket
    }

    fn send(&mut self, flags: u8, content: &[u8]) {
        let mut bytes = Vec::with_capacity(content.len() + 9);
        if content.len() > 255 {
            bytes.push(flags | LONG);
            bytes.extend((content.len() as u64).to_be_bytes());
        } else {
            bytes.extend([flags, content.len() as u8]);
        }
        bytes.extend(content);
        self.stream.write_all(&bytes).unwrap();
    }

    fn frame(&mut self) -> (u8, Vec<u8>) {
        let mut flags = [0u8];
        self.stream.read_exact(&mut flags).expect("an answer in time");
        let size = if flags[0] & LONG != 0 {
            let mut size = [0u8; 8];
            self.stream.read_exact(&mut size).unwrap();
            u64::from_be_bytes(size) as usize
        } else {
            let mut size = [0u8];
            self.stream.read_exact(&mut size).unwrap();
            size[0] as usize
        };
        let mut content = vec![0u8; size];
        self.stream.read_exact(&mut content).unwrap();
        (flags[0], content)
    }

    /// The frames of a message; heartbeats of ZMTP are answered.
    fn message(&mut self) -> Vec<String> {
        let mut frames = Vec::new();
        loop {
            let (flags, content) = self.frame();
            if flags & COMMAND != 0 {
                if content.starts_with(b"\x04PING") {
                    let pong = [b"\x04PONG", &content[7..]].concat();
                    self.send(COMMAND, &pong);
                }
                continue;
            }
            frames.push(String::from_utf8(content).expect("UTF-8"));
            if flags & MORE == 0 {
                return frames;
            }
        }
    }

    /// Sends a request and gives its reply whole, and the lines behind it.
    fn ask(&mut self, request: &str) -> (Json, String) {
        self.send(MORE, b"");
        self.send(0, request.as_bytes());
        let mut frames = self.message();
        assert_eq!(frames.remove(0), "", "the empty frame that was sent");
        let reply = Json::parse(&frames.remove(0));
        assert_eq!(reply.at("error"), &Json::Null, "{request}: {reply:?}");
        assert_eq!(reply.text("id"), Json::parse(request).text("id"));
        (reply, frames.pop().unwrap_or_default())
    }
}

struct Client {
    qry: Socket,
    stream: String,
    boot: String,
    marked: String,
    asked: u32,
    last: i64,
    printed: usize,
    is_marked: bool,
}

impl Client {
    fn request(&mut self, method: &str, params: &str) -> String {
        self.asked += 1;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
        let expect = if self.boot.is_empty() { "".into() } else { format!("\"boot\":\"{}\"", self.boot) };
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":\"rs-{}-{}\",\"method\":\"{method}\",\"params\":{params},\"meta\":{{\
             \"v\":1,\"client\":\"client.rs\",\"expect\":{{{expect}}},\"deadline\":{}}}}}",
            std::process::id(),
            self.asked,
            now + 30_000_000
        )
    }

    /// Lines `first`, `first` + 1, … in order; what was printed before is passed over.
    fn deliver(&mut self, first: i64, lines: &str) {
        for (seq, line) in (first..).zip(lines.split('\n').filter(|line| !line.is_empty())) {
            if seq <= self.last {
                continue;
            }
            assert_eq!(seq, self.last + 1, "a hole");
            let event = Json::parse(line);
            assert_eq!(event.int("seq"), seq);
            println!("{line}");
            self.last = seq;
            self.printed += 1;
            self.is_marked |= event.text("type") == "mark" && event.text("data.text") == self.marked;
        }
    }

    fn repair(&mut self, until: i64) {
        while self.last < until {
            let first = self.last + 1;
            let params = format!("{{\"stream\":\"{}\",\"first\":{first},\"last\":{until}}}", self.stream);
            let request = self.request("replay", &params);
            let (reply, lines) = self.qry.ask(&request);
            assert!(reply.int("result.n") > 0, "nothing held of {first}");
            eprintln!("repaired {first}..");
            self.deliver(first, &lines);
        }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [ev, qry, ctl, stream, drop, text] = <[String; 6]>::try_from(words).expect("EV QRY CTL STREAM DROP TEXT");
    let mut events = Socket::connect(&ev, "SUB");
    // 1. Subscribe, heartbeats last; the first frame of theirs shows that all is in force.
    for topic in [format!("1/{stream}"), "1/hb".to_string()] {
        events.send(COMMAND, &[b"\x09SUBSCRIBE", topic.as_bytes()].concat());
    }
    while events.message()[0] != "1/hb" {}
    // 2. and 3.
    let mut client = Client {
        qry: Socket::connect(&qry, "DEALER"),
        stream: stream.clone(),
        boot: String::new(),
        marked: text.clone(),
        asked: 0,
        last: 0,
        printed: 0,
        is_marked: false,
    };
    let request = client.request("hello", "{}");
    let (hello, _) = client.qry.ask(&request);
    assert_eq!(hello.int("result.protocol"), 1);
    client.boot = hello.text("result.boot").to_string();
    let request = client.request("snapshot", &format!("{{\"streams\":[\"{stream}\"]}}"));
    let (snapshot, _) = client.qry.ask(&request);
    client.last = snapshot.int(&format!("result.seq.{stream}"));

    // A command, and the same bytes once more: it has one effect, and the answer says that it is a repeat.
    let mut commands = Socket::connect(&ctl, "DEALER");
    let request = client.request("mark", &format!("{{\"text\":\"{text}\"}}"));
    let (accepted, _) = commands.ask(&request);
    assert_eq!((accepted.text("result.state"), accepted.at("meta.replayed")), ("done", &Json::Bool(false)));
    let (again, _) = commands.ask(&request);
    assert_eq!((again.at("result"), again.at("meta.replayed")), (accepted.at("result"), &Json::Bool(true)));

    // 4. and 5.
    let (mut batches, drop) = (0, drop.parse::<u32>().unwrap());
    while if stream == "life" { !client.is_marked } else { client.printed < WANTED } {
        let frames = events.message();
        match frames.as_slice() {
            [_, body] => client.repair(Json::parse(body).int(&format!("last.{stream}"))),
            [_, header, lines] => {
                let header = Json::parse(header);
                batches += u32::from(header.int("last") > client.last);
                if header.int("last") > client.last && batches != drop {
                    client.repair(header.int("first") - 1);
                    client.deliver(header.int("first"), lines);
                }
            }
            _ => {}
        }
    }
}
