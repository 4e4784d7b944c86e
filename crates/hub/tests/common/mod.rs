//! A hub on this machine: the paths, headers, ranges and redirects of the real one, and its accidents.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use sha2::{Digest, Sha256};

/// The commit of the first state of the repository.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// One file of the repository.
#[derive(Clone)]
pub(crate) struct File {
    pub(crate) content: Vec<u8>,
    /// Served through a redirect, with its SHA-256 as its tag, as large files are.
    pub(crate) large: bool,
}

/// What the server serves, and what goes wrong.
pub(crate) struct State {
    pub(crate) commit: String,
    pub(crate) files: BTreeMap<String, File>,
    /// Files that are listed but have no content.
    pub(crate) listed_only: Vec<String>,
    /// The next answer with this file's content breaks off after so many bytes.
    pub(crate) break_after: Option<(String, usize)>,
    /// Content that is served in place of this file's.
    pub(crate) forged: Option<(String, Vec<u8>)>,
    /// Every request is answered with this status.
    pub(crate) status: Option<u16>,
    /// A token that every request must carry.
    pub(crate) token: Option<String>,
    /// Requests so far: path and range.
    pub(crate) log: Vec<(String, Option<String>)>,
}

/// The running server. Its thread ends with the process.
pub(crate) struct Hub {
    pub(crate) endpoint: String,
    pub(crate) state: Arc<Mutex<State>>,
}

impl Hub {
    /// Serves `owner/name` with the given files; those that end in `.safetensors` are large.
    pub(crate) fn start(files: &[(&str, &[u8])]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let file = |(name, content): &(&str, &[u8])| {
            let large = name.ends_with(".safetensors");
            ((*name).to_owned(), File { content: content.to_vec(), large })
        };
        let state = Arc::new(Mutex::new(State {
            commit: COMMIT.to_owned(),
            files: files.iter().map(file).collect(),
            listed_only: Vec::new(),
            break_after: None,
            forged: None,
            status: None,
            token: None,
            log: Vec::new(),
        }));
        let (served, base) = (Arc::clone(&state), endpoint.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (served, base) = (Arc::clone(&served), base.clone());
                // A client that goes away in the middle is the client's affair.
                thread::spawn(move || {
                    let _ = answer(&stream.unwrap(), &served, &base);
                });
            }
        });
        Self { endpoint, state }
    }

    /// How often the content of a file was asked for, and from which ranges.
    pub(crate) fn ranges(&self, name: &str) -> Vec<String> {
        let state = self.state.lock().unwrap();
        let of_file = |(path, range): &(String, Option<String>)| {
            let content = path.ends_with(&format!("/{name}"));
            content.then(|| range.clone().unwrap_or_default())
        };
        let ranges = state.log.iter().filter_map(of_file);
        ranges.filter(|range| range != "bytes=0-0").collect()
    }
}

fn answer(stream: &TcpStream, state: &Mutex<State>, base: &str) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut range, mut authorization) = (None, None);
    for line in lines {
        let line = line?;
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(": ") {
            match name.to_ascii_lowercase().as_str() {
                "range" => range = Some(value.to_owned()),
                "authorization" => authorization = Some(value.to_owned()),
                _ => {}
            }
        }
    }
    let response = {
        let mut state = state.lock().unwrap();
        state.log.push((path.clone(), range.clone()));
        respond(&mut state, &path, range.as_deref(), authorization.as_deref(), base)
    };
    let mut out = stream;
    let mut head = format!("HTTP/1.1 {} x\r\nConnection: close\r\n", response.status);
    for (name, value) in &response.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", response.body.len()));
    out.write_all(head.as_bytes())?;
    let sent = response.cut.unwrap_or(response.body.len()).min(response.body.len());
    out.write_all(&response.body[..sent])?;
    out.flush()
}

#[derive(Default)]
struct Response {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    cut: Option<usize>,
}

fn respond(
    state: &mut State,
    path: &str,
    range: Option<&str>,
    authorization: Option<&str>,
    base: &str,
) -> Response {
    let plain = |status| Response { status, ..Response::default() };
    if let Some(status) = state.status {
        return plain(status);
    }
    let wanted = state.token.as_ref().map(|token| format!("Bearer {token}"));
    if wanted.is_some() && wanted.as_deref() != authorization {
        return plain(401);
    }
    let commit = state.commit.clone();
    if let Some(revision) = path.strip_prefix("/api/models/owner/name/revision/") {
        if revision != "main" && revision != commit {
            return plain(404);
        }
        let listed = state.files.keys().chain(&state.listed_only);
        let siblings: Vec<_> = listed.map(|name| serde_json::json!({"rfilename": name})).collect();
        let body = serde_json::json!({"sha": commit, "siblings": siblings}).to_string();
        let headers = vec![("Content-Type", "application/json".to_owned())];
        return Response { status: 200, headers, body: body.into_bytes(), cut: None };
    }
    let resolve = format!("/owner/name/resolve/{commit}/");
    let (name, direct) = match (path.strip_prefix(&resolve), path.strip_prefix("/cdn/")) {
        (Some(name), _) => (name, false),
        (_, Some(name)) => (name, true),
        _ => return plain(404),
    };
    let Some(file) = state.files.get(name).cloned() else {
        return plain(404);
    };
    let hash = format!("{:x}", Sha256::digest(&file.content));
    let tag = if file.large { hash } else { hash[..40].to_owned() };
    if file.large && !direct {
        let headers = vec![
            ("Location", format!("{base}/cdn/{name}")),
            ("X-Linked-Etag", format!("\"{tag}\"")),
            ("X-Repo-Commit", commit),
        ];
        return Response { status: 302, headers, ..Response::default() };
    }
    let headers = vec![("ETag", format!("\"{tag}\"")), ("X-Repo-Commit", commit)];
    content(state, name, file.content, range, headers)
}

/// The asked range of a file.
fn content(
    state: &mut State,
    name: &str,
    whole: Vec<u8>,
    range: Option<&str>,
    mut headers: Vec<(&'static str, String)>,
) -> Response {
    let whole = match &state.forged {
        Some((forged, content)) if forged == name => content.clone(),
        _ => whole,
    };
    let (start, end) = match range.and_then(|range| range.strip_prefix("bytes=")) {
        None => (0, whole.len()),
        Some(range) => {
            let (start, end) = range.split_once('-').unwrap();
            let end = end.parse().map_or(whole.len(), |end: usize| end + 1);
            (start.parse().unwrap(), end.min(whole.len()))
        }
    };
    if start >= whole.len() {
        return Response { status: 416, ..Response::default() };
    }
    headers.push(("Content-Range", format!("bytes {start}-{}/{}", end - 1, whole.len())));
    let asked_for_all = range.is_none_or(|range| range != "bytes=0-0");
    let breaks = state.break_after.as_ref().is_some_and(|(broken, _)| broken == name);
    let cut = if breaks && asked_for_all {
        state.break_after.take().map(|(_, after)| after)
    } else {
        None
    };
    Response { status: 206, headers, body: whole[start..end].to_vec(), cut }
}
