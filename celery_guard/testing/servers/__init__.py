"""Real servers for tests, each a child process with its own port and folder: none needs Docker.

Loads no client library, neither Celery nor Django.
"""

from celery_guard.testing.servers.base import ServerProcess, ServerStartError
from celery_guard.testing.servers.mariadb import MariaDBServer
from celery_guard.testing.servers.postgres import PostgresServer
from celery_guard.testing.servers.rabbitmq import RabbitMQServer
from celery_guard.testing.servers.redis import RedisServer
from celery_guard.testing.servers.valkey import ValkeyServer

__all__ = [
    "MariaDBServer",
    "PostgresServer",
    "RabbitMQServer",
    "RedisServer",
    "ServerProcess",
    "ServerStartError",
    "ValkeyServer",
]
