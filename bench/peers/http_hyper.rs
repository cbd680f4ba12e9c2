// http_hyper.rs: hyper on tokio's work-stealing pool. It parses all of HTTP; pipeline_flush gathers
// the answers of one read.
//
//     http_hyper port threads
use hyper::header::{HeaderValue, CONTENT_TYPE, SERVER};
use hyper::server::conn::AddrIncoming;
use hyper::service::{make_service_fn, service_fn};
use hyper::{Body, Request, Response, Server, StatusCode};
use std::convert::Infallible;
use std::net::SocketAddr;

async fn answer(request: Request<Body>) -> Result<Response<Body>, Infallible> {
    if request.uri().path() != "/plaintext" {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_FOUND;
        return Ok(response);
    }
    let mut response = Response::new(Body::from("Hello, World!"));
    let headers = response.headers_mut();
    headers.insert(SERVER, HeaderValue::from_static("peer"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Ok(response)
}

async fn serve(port: u16) {
    let mut incoming = AddrIncoming::bind(&SocketAddr::from(([127, 0, 0, 1], port))).expect("bind");
    incoming.set_nodelay(true);
    let service = make_service_fn(|_| async { Ok::<_, Infallible>(service_fn(answer)) });
    Server::builder(incoming)
        .http1_only(true)
        .http1_pipeline_flush(true)
        .serve(service)
        .await
        .expect("serve");
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let port = arguments[1].parse().expect("port");
    let threads = arguments[2].parse().expect("threads");
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .expect("runtime")
        .block_on(serve(port));
}
