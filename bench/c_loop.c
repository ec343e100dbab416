/* The floor that downloads are measured against: blocking sockets, 1 MiB recv and write, no
 * signature, no check, no temporary file.
 *
 *     c_loop HOST PORT CONNECTIONS ORDERS
 *
 * ORDERS has a line "path TAB size TAB destination" for each file; threads take them in order.
 */
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BUFFER = 1 << 20, LINE = 8192 };

static const char *host, *port;
static FILE *orders;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static int dial(void)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    if (getaddrinfo(host, port, &hints, &found) != 0)
        fail("getaddrinfo");
    int peer = socket(found->ai_family, found->ai_socktype, 0), on = 1;
    if (peer < 0 || connect(peer, found->ai_addr, found->ai_addrlen) != 0)
        fail("connect");
    setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    freeaddrinfo(found);
    return peer;
}

static void write_all(int file, const char *data, ssize_t count)
{
    while (count > 0) {
        ssize_t written = write(file, data, count);
        if (written < 0)
            fail("write");
        data += written;
        count -= written;
    }
}

static void fetch(int peer, char *buffer, const char *path, long long size, const char *destination)
{
    int length = snprintf(buffer, BUFFER, "GET %s HTTP/1.1\r\nHost: %s:%s\r\n\r\n", path, host, port);
    if (send(peer, buffer, length, 0) != length)
        fail("send");
    int file = open(destination, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (file < 0)
        fail(destination);
    ssize_t count, have = 0;
    char *body;
    do {
        count = recv(peer, buffer + have, BUFFER - 1 - have, 0);
        if (count <= 0)
            fail("recv");
        have += count;
        buffer[have] = 0;
    } while (!(body = strstr(buffer, "\r\n\r\n")));
    if (strncmp(buffer, "HTTP/1.1 200", 12) != 0) {
        fprintf(stderr, "%s: %.40s\n", path, buffer);
        exit(1);
    }
    body += 4;
    count = buffer + have - body;
    for (;;) {
        write_all(file, body, count);
        size -= count;
        if (size <= 0)
            break;
        count = recv(peer, buffer, size < BUFFER ? size : BUFFER, 0);
        if (count <= 0)
            fail("recv");
        body = buffer;
    }
    close(file);
}

static void *work(void *unused)
{
    char line[LINE], *buffer = malloc(BUFFER);
    int peer = dial();
    for (;;) {
        pthread_mutex_lock(&lock);
        char *more = fgets(line, sizeof line, orders);
        pthread_mutex_unlock(&lock);
        if (!more)
            break;
        char *path = strtok_r(line, "\t", &more), *size = strtok_r(NULL, "\t", &more);
        char *destination = strtok_r(NULL, "\n", &more);
        fetch(peer, buffer, path, atoll(size), destination);
    }
    close(peer);
    free(buffer);
    return unused;
}

int main(int count, char **words)
{
    if (count != 5)
        return 2;
    host = words[1];
    port = words[2];
    int threads = atoi(words[3]);
    if (!(orders = fopen(words[4], "r")))
        fail(words[4]);
    pthread_t ids[256];
    if (threads < 1 || threads > 256)
        return 2;
    for (int i = 0; i < threads; i++)
        pthread_create(&ids[i], NULL, work, NULL);
    for (int i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    return 0;
}
