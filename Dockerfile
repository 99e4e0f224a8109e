# docker build -t hermes-actor . && docker run -v hermes-home:/data hermes-actor
FROM python:3.13-slim-bookworm AS build
COPY . /source
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:3.13-slim-bookworm
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir /wheels/*.whl \
    && useradd --create-home --uid 1000 hermes \
    && install -d -m 700 -o hermes -g hermes /data
USER hermes
# The database, its write-ahead log, the owner lock and the socket: all of it is in the home.
VOLUME /data
ENV HERMES_HOME=/data
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["hermes-actor", "status"]
# SIGTERM, which `docker stop` sends, is a drain.
ENTRYPOINT ["hermes-actor"]
CMD ["serve", "--plain"]
